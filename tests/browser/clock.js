// The burned-in clock of the simulator, for pictures that a browser makes: the same cells as
// `liveedge.sim.clockcode` draws and reads.
const COLUMNS = 64;
const ROWS = 2;

function crc16(bytes) {
  let crc = 0xffff;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit += 1) {
      crc = crc & 0x8000 ? ((crc << 1) ^ 0x1021) & 0xffff : (crc << 1) & 0xffff;
    }
  }
  return crc;
}

function clockBits(frameNumber, sceneMs, wallMs) {
  const bytes = new Uint8Array(16);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, frameNumber);
  view.setUint32(4, sceneMs);
  view.setUint16(8, Math.floor(wallMs / 2 ** 32));
  view.setUint32(10, wallMs % 2 ** 32);
  view.setUint16(14, crc16(bytes.subarray(0, 14)));
  return bytes;
}

// Draws a picture that changes everywhere a little, with the clock along its lower edge.
function drawFrame(context, frameNumber, hue) {
  const { width, height } = context.canvas;
  context.fillStyle = `hsl(${hue} 60% ${35 + (frameNumber % 20)}%)`;
  context.fillRect(0, 0, width, height);
  const strip = Math.max(2 * ROWS, Math.round(height * 0.05));
  const wallMs = Date.now();
  const bytes = clockBits(frameNumber, 0, wallMs);
  for (let row = 0; row < ROWS; row += 1) {
    for (let column = 0; column < COLUMNS; column += 1) {
      const index = row * COLUMNS + column;
      context.fillStyle = bytes[index >> 3] & (0x80 >> (index & 7)) ? '#fff' : '#000';
      const x = Math.ceil((column * width) / COLUMNS);
      const y = height - strip + Math.ceil((row * strip) / ROWS);
      context.fillRect(
        x,
        y,
        Math.ceil(((column + 1) * width) / COLUMNS) - x,
        Math.ceil(((row + 1) * strip) / ROWS) - Math.ceil((row * strip) / ROWS),
      );
    }
  }
}

// A video track of drawn frames.
function drawnTrack({ width = 640, height = 480, fps = 15, hue = 200 } = {}) {
  const canvas = document.createElement('canvas');
  canvas.width = width;
  canvas.height = height;
  document.body.append(canvas);
  const context = canvas.getContext('2d');
  let frameNumber = 0;
  const draw = () => drawFrame(context, (frameNumber += 1), hue);
  draw();
  setInterval(draw, 1000 / fps);
  return canvas.captureStream(fps).getVideoTracks()[0];
}
