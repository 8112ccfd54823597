// The `openai` package for JavaScript against a server: what it made of the answers, as one line of JSON.
// Usage: node openai.js <base url> <key> <model>
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 30_000 });
const messages = [{ role: "user", content: [{ type: "text", text: "What is there?" }] }];
const tools = [
  {
    type: "function",
    function: {
      name: "move",
      parameters: { type: "object", properties: { to: { enum: ["left", "right"] } } },
    },
  },
];
const found = {};

const whole = await client.chat.completions.create({ model, messages, logprobs: true });
found.whole = whole.choices[0].message.content;
found.tokens = whole.choices[0].logprobs.content.map((one) => one.token).join("");

found.streamed = "";
const stream = await client.chat.completions.create({
  model, messages, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  found.streamed += chunk.choices[0]?.delta?.content ?? "";
  found.usage = chunk.usage ?? found.usage;
}

const called = await client.chat.completions.create({ model, messages, tools });
found.reason = called.choices[0].finish_reason;
found.call = called.choices[0].message.tool_calls[0].function;

const runner = client.chat.completions.stream({ model, messages, tools });
found.streamedCall = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0].function;

const after = [
  ...messages,
  called.choices[0].message,
  { role: "tool", tool_call_id: called.choices[0].message.tool_calls[0].id, content: "done" },
];
const closed = await client.chat.completions.create({ model, messages: after });
found.closed = closed.choices[0].message.content;

found.models = (await client.models.list()).data.map((one) => one.id);
try {
  await client.chat.completions.create({ model: "nobody/knows", messages });
} catch (error) {
  found.error = [error.constructor.name, error.status, error.code];
}
console.log(JSON.stringify(found));
