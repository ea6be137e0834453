// An MCP server that keeps to nothing, for the tests of tools: line JSON over standard input and output, without an SDK,
// of a revision before 2026-07-28.
//
// Started with one argument, MODE or MODE=JOURNAL. The journal is a file to which it adds a line of JSON for each start,
// { started, child }, each call of `echo`, and the end of each request of its own, { refused } or { answered }. The tool
// `echo` works in every mode.
//
//   plain         keeps to everything
//   silent        never answers `server/discover`
//   deaf          goes on when its input ends, and when it is told to stop
//   child         starts a process that does so, and ends itself when its input ends
//   flood-stderr  writes to standard error without an end
//   flood-stdout  writes notifications to standard output without an end, once it has listed its tools
//   huge-answer   has a tool `huge`, whose answer is one line of 100 MB with its id at the end
//   many-tools    lists 300 tools
//   nagging       asks for the client's roots, for a sample and for a person before each answer
//   flood-progress  has a tool `flood`, which tells 5,000 times without a pause how far it is, and answers a second later
//   asks          has a tool `ask`, which waits until it is called twice, then asks a person for both calls at once, and
//                 answers each with the action that it was told

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
  if (mode === 'asks') return [tool('echo'), tool('ask')];
  if (mode === 'flood-progress') return [tool('echo'), tool('flood')];
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

function question() {
  const requestedSchema = { type: 'object', properties: { sure: { type: 'boolean' } } };
  return { method: 'elicitation/create', params: { message: 'Sure?', requestedSchema } };
}

// Calls of `ask` that wait for a second one.
const waiting = [];

function ask(id) {
  waiting.push(id);
  if (waiting.length < 2) return;
  for (const call of waiting.splice(0)) send({ id: `of-${call}`, ...question() });
}

function told(id, result, error) {
  note(error ? { refused: error.code } : { answered: result.action });
  if (mode !== 'asks') return;
  const text = error ? `refused: ${error.code}` : result.action;
  send({ id: Number(id.slice('of-'.length)), result: { content: [{ type: 'text', text }] } });
}

function nag() {
  const sample = { method: 'sampling/createMessage', params: { messages: [], maxTokens: 1 } };
  for (const request of [{ method: 'roots/list' }, sample, question()]) send({ id: (asked += 1), ...request });
}

// As much as is read, without a pause.
function floodOutput() {
  const notice = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: 'x' } });
  process.stdout.write((notice + '\n').repeat(1000), () => setImmediate(floodOutput));
}

function floodProgress(id, progressToken) {
  for (let progress = 1; progress <= 5000; progress += 1) {
    send({ method: 'notifications/progress', params: { progressToken, progress, message: 'x'.repeat(300) } });
  }
  setTimeout(() => send({ id, result: { content: [{ type: 'text', text: 'flooded' }] } }), 1000);
}

function call(id, { name, arguments: given, _meta: meta }) {
  if (name === 'huge') return huge(id);
  if (name === 'flood') return floodProgress(id, meta.progressToken);
  if (name === 'ask') return ask(id);
  const text = given?.text ?? '';
  note({ echo: text });
  send({ id, result: { content: [{ type: 'text', text }] } });
}

function answer({ id, method, params, result, error }) {
  if (method === undefined) return told(id, result, error);
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
      if (mode === 'flood-stdout') floodOutput();
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
