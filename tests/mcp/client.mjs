// An MCP client of the official SDK for the tests of what is served.
//
// Started with one JSON argument: { url | command: [program, ...arguments], env, token, version, tasks, answer }.
// `version` is "auto" (the era of the server) or "2025-11-25". `tasks`: it follows tasks. `answer`: it shows forms and
// links, and fills each form in with this; without it, it shows none. It prints a line of JSON once it is connected,
// { era, version, server, tools }, and then one for each line of JSON that it reads: { call: name, arguments } or
// { request: { method, params } } is answered with { result } or { error: { code, message, data } }, and with { asked },
// what the person was asked meanwhile.

import { createInterface } from 'node:readline';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const options = JSON.parse(process.argv[2]);
const TASKS = 'io.modelcontextprotocol/tasks';
const asked = [];

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

function transport() {
  if (options.command) {
    const [command, ...args] = options.command;
    return new StdioClientTransport({ command, args, env: options.env, cwd: options.cwd, stderr: 'inherit' });
  }
  const requestInit = { headers: { authorization: `Bearer ${options.token}` } };
  return new StreamableHTTPClientTransport(new URL(options.url), { requestInit });
}

function client() {
  const capabilities = {};
  if (options.tasks) capabilities.extensions = { [TASKS]: {} };
  if (options.answer) capabilities.elicitation = { form: {}, url: {} };
  const mode = options.version === 'auto' ? 'auto' : 'legacy';
  const made = new Client({ name: 'tests', version: '1' }, { capabilities, versionNegotiation: { mode } });
  if (options.answer) {
    made.setRequestHandler('elicitation/create', async ({ params }) => {
      asked.push(params);
      return params.mode === 'url' ? { action: 'accept' } : { action: 'accept', content: options.answer };
    });
  }
  return made;
}

// the SDK leaves the extension of tasks to the host: a result of that kind is one that it lets through as it is
function passTasks(wire) {
  const take = wire.onmessage;
  wire.onmessage = (message, extra) => {
    const result = message.result;
    if (result?.resultType !== 'task') return take(message, extra);
    const task = { ...result, resultType: 'complete', content: [], _meta: { ...result._meta, isTask: true } };
    return take({ ...message, result: task }, extra);
  };
}

// takes any result as it is
const anything = { '~standard': { version: 1, vendor: 'tests', validate: (value) => ({ value }) } };

async function answerTo(made, line) {
  if (line.call) return made.callTool({ name: line.call, arguments: line.arguments ?? {} });
  return made.request(line.request, anything);
}

function told(error) {
  return { code: error.code ?? null, message: String(error.message ?? error), data: error.data ?? null };
}

async function main() {
  const made = client();
  const wire = transport();
  try {
    await made.connect(wire);
  } catch (error) {
    say({ error: told(error) });
    process.exit(1);
  }
  passTasks(wire);
  const { tools } = await made.listTools();
  say({
    era: made.getProtocolEra(),
    version: made.getNegotiatedProtocolVersion(),
    server: made.getServerVersion()?.name,
    tools: tools.map((tool) => tool.name),
  });
  for await (const text of createInterface({ input: process.stdin })) {
    let answer;
    try {
      answer = { result: await answerTo(made, JSON.parse(text)) };
    } catch (error) {
      answer = { error: told(error) };
    }
    say({ ...answer, asked: asked.splice(0) });
  }
  await made.close();
}

main().then(
  () => process.exit(0),
  (error) => {
    say({ error: told(error) });
    process.exit(1);
  },
);
