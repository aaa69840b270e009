// The task of agent_clients.py by npm's `openai`: node agent_client.mjs FOLDER-OF-NODE_MODULES '{"url": ...}'
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, told] = process.argv.slice(2);
const way = JSON.parse(told);
const found = createRequire(folder + "/").resolve("openai");
const { default: OpenAI } = await import(pathToFileURL(found));
const client = new OpenAI({ baseURL: way.url, apiKey: "none", maxRetries: 0, timeout: 600_000 });
const messages = [{ role: "user", content: way.question }];
const events = [];

async function ask(body) {
  if (!way.stream) return (await client.chat.completions.create(body)).choices[0].message;
  const stream = client.chat.completions.stream(body);
  return await stream.finalMessage();
}

for (const choice of way.turns) {
  const called = events.map((event) => event[1]);
  const left = way.tools.filter((tool) => !called.includes(tool.function.name));
  const last = choice === "none";
  const message = await ask({
    model: way.model, messages, tools: left.length ? left : way.tools, tool_choice: choice, parallel_tool_calls: false, temperature: 0,
    max_tokens: last ? way.most : 200, ...(last ? way.last : way.extra),
  });
  if (last) {
    events.push(["text", message.content]);
    continue;
  }
  const [call] = message.tool_calls;
  events.push(["call", call.function.name, call.function.arguments]);
  messages.push({ role: "assistant", tool_calls: [call] });
  messages.push({ role: "tool", tool_call_id: call.id, content: way.results[call.function.name] });
}
console.log(JSON.stringify(events));
