// The server's API: answers as streams of chunks, errors in words.

const SILENT = "The server does not answer. Trying again until it does; Esc gives up.";

/** An error with a message for the user; `again` is the seconds to wait before a retry, if one makes sense. */
export class Trouble extends Error {
  constructor(message, { status = 0, again = null, full = false } = {}) {
    super(message);
    this.full = full; // the conversation is longer than the context
    this.status = status;
    this.again = again;
  }
}

/** The chunks of a chat's answer. */
export async function* answer(body, key, signal) {
  const reply = await post(
    "v1/chat/completions",
    { ...body, stream: true, stream_options: { include_usage: true } },
    key,
    signal,
  );
  let ended = false;
  for await (const data of events(reply.body, signal)) {
    if (data === "[DONE]") ended = true;
    else yield checked(JSON.parse(data));
  }
  if (!ended) throw new Trouble("The answer broke off: the connection was lost.");
}

/** Figures of the engine. */
export async function live(key, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const reply = await fetch("augury/live", { headers, signal, cache: "no-store" });
  if (!reply.ok) throw new Trouble(`The server has no figures (HTTP ${reply.status}).`, { status: reply.status });
  return reply.json();
}

async function post(path, body, key, signal) {
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  let reply;
  try {
    reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Trouble(SILENT, { again: 2 });
  }
  if (!reply.ok) throw await refusal(reply);
  return reply;
}

async function refusal(reply) {
  const said = (await reply.json().catch(() => null))?.error?.message ?? `HTTP ${reply.status}`;
  const status = reply.status;
  if (status === 401) return new Trouble("This server wants an API key.", { status });
  if (status === 429 || status === 503) {
    const again = Number(reply.headers.get("Retry-After")) || 2;
    const who = status === 429 ? "The server is busy" : "The server is not taking requests";
    return new Trouble(`${who}: ${said} Trying again every ${again} s; Esc gives up.`, { status, again });
  }
  return new Trouble(`The server refused: ${said}`, { status, full: said.includes("max_model_len") });
}

function checked(chunk) {
  if (chunk.error) throw new Trouble(`The answer broke off: ${chunk.error.message}`);
  return chunk;
}

/** The data of server-sent events; ours have one line each. */
async function* events(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
    }
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Trouble("The answer broke off: the connection was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
