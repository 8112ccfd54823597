// Runs a page in headless Chromium for a test. Lines of JSON come in, {"id", "js"}: an expression that
// is evaluated in the page and awaited, or null to load the page again. Lines of JSON go out: {"id", "value"}, {"id", "error"}, or
// {"event"} for what the page logs.
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

const [executablePath, url, ...extra] = process.argv.slice(2);
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');

const browser = await chromium.launch({
  executablePath,
  args: [
    '--no-sandbox',
    '--disable-gpu',
    '--use-fake-ui-for-media-stream',
    '--use-fake-device-for-media-stream',
    '--autoplay-policy=no-user-gesture-required',
    // A server on this machine is reached by its loopback address, which browsers hide otherwise.
    '--disable-features=WebRtcHideLocalIpsWithMdns',
    '--allow-loopback-in-peer-connection',
    ...extra,
  ],
});
const page = await browser.newPage();
page.on('console', (message) => say({ event: message.text() }));
page.on('pageerror', (error) => say({ event: `error: ${error.message}` }));
await page.goto(url);
say({ event: 'ready' });

for await (const line of createInterface({ input: process.stdin })) {
  const { id, js } = JSON.parse(line);
  (js === null ? page.reload() : page.evaluate(js)).then(
    (value) => say({ id, value: js === null ? null : (value ?? null) }),
    (error) => say({ id, error: String(error.message ?? error) }),
  );
}
await browser.close();
