// An MCP server that keeps to nothing, for the tests of tools: line JSON over standard input and output, without an SDK,
// of a revision before 2026-07-28.
//
// Started with one argument, MODE or MODE=JOURNAL. The journal is a file to which it adds a line of JSON for each start,
// { started, child }, and each call of `echo`. The tool `echo` works in every mode.
//
//   plain         keeps to everything
//   silent        never answers `server/discover`
//   deaf          goes on when its input ends, and when it is told to stop
//   child         starts a process that does so, and ends itself when its input ends
//   flood-stderr  writes to standard error without an end
//   huge-answer   has a tool `huge`, whose answer is one line of 100 MB with its id at the end
//   many-tools    lists 300 tools
//   nagging       asks for the client's roots, for a sample and for a person before each answer

import { spawn } from 'node:child_process';
import { appendFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

const [mode, journal] = process.argv[2].split('=');
const REVISION = '2025-11-25';
const MEGABYTE = 1_000_000;
const METHOD_NOT_FOUND = { code: -32601, message: 'Method not found' };

function note(line) {
  if (journal) appendFileSync(journal, JSON.stringify(line) + '\n');
}

function send(message) {
  process.stdout.write(JSON.stringify({ jsonrpc: '2.0', ...message }) + '\n');
}

function tool(name) {
  const inputSchema = { type: 'object', properties: { text: { type: 'string' } } };
  return { name, description: `The tool ${name}.`, inputSchema, annotations: { readOnlyHint: true } };
}

function tools() {
  if (mode === 'huge-answer') return [tool('echo'), tool('huge')];
  if (mode === 'many-tools') return [tool('echo'), ...Array.from({ length: 299 }, (_, number) => tool(`tool_${number}`))];
  return [tool('echo')];
}

function huge(id) {
  process.stdout.write('{"result":{"content":[{"type":"text","text":"');
  const megabyte = 'x'.repeat(MEGABYTE);
  for (let written = 0; written < 100; written += 1) process.stdout.write(megabyte);
  process.stdout.write(`"}]},"jsonrpc":"2.0","id":${id}}\n`);
}

let asked = 0;

function nag() {
  const message = { method: 'elicitation/create', params: { message: 'Sure?', requestedSchema: { type: 'object', properties: {} } } };
  const sample = { method: 'sampling/createMessage', params: { messages: [], maxTokens: 1 } };
  for (const request of [{ method: 'roots/list' }, sample, message]) send({ id: (asked += 1), ...request });
}

function call(id, { name, arguments: given }) {
  if (name === 'huge') return huge(id);
  const text = given?.text ?? '';
  note({ echo: text });
  send({ id, result: { content: [{ type: 'text', text }] } });
}

function answer({ id, method, params, error }) {
  if (method === undefined) return note({ refused: error?.code ?? null });
  if (id === undefined) return; // a notification
  if (mode === 'nagging' && method === 'tools/call') nag();
  switch (method) {
    case 'server/discover':
      if (mode !== 'silent') send({ id, error: METHOD_NOT_FOUND });
      break;
    case 'initialize': {
      const serverInfo = { name: 'hostile', version: '1.0.0' };
      send({ id, result: { protocolVersion: REVISION, capabilities: { tools: {} }, serverInfo } });
      break;
    }
    case 'tools/list':
      send({ id, result: { tools: tools() } });
      break;
    case 'tools/call':
      call(id, params);
      break;
    case 'ping':
      send({ id, result: {} });
      break;
    default:
      send({ id, error: METHOD_NOT_FOUND });
  }
}

// A process that ends by no kinder way than a kill. It has this server's output and error, but not its input.
function child() {
  const script = "process.on('SIGTERM', () => {}); setInterval(() => {}, 1000);";
  return spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'inherit', 'inherit'] }).pid;
}

// As much as is read, without a pause.
function flood() {
  process.stderr.write('all is lost, and this is the only line that says so\n'.repeat(1200), () => setImmediate(flood));
}

if (mode === 'deaf') {
  process.on('SIGTERM', () => {});
  setInterval(() => {}, 1000);
}
const started = { started: process.pid };
if (mode === 'child') started.child = child();
note(started);
if (mode === 'flood-stderr') flood();
const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => answer(JSON.parse(line)));
if (mode !== 'deaf') lines.on('close', () => process.exit(0));
