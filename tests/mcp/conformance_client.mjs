// Reveille as the client that the conformance suite measures. The suite runs this with the address of a server behind
// all other arguments, and with MCP_CONFORMANCE_SCENARIO and MCP_CONFORMANCE_CONTEXT in its environment.
//
// It starts the real binary (REVEILLE_TEST_BINARY) with that one server, connects an account as a person with a browser
// does where the scenario is one of authorization, has a pipeline call each tool that the server offers, or an agent
// where a tool asks a person, and answers as that person. All of it goes by the API. The suite runs every scenario of a
// revision at the same time; at most PLACES of these work at once, by the directory REVEILLE_TEST_QUEUE. Whether a
// scenario has passed is for the suite to say: what fails here is printed, and no more.

import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';

const PLACES = 3;
const LOOK_MS = 100;
// for a server to be connected, and for a run to end, on a loaded machine
const PATIENCE_MS = 20_000;
// for the tools of a connected server, which may have none
const LISTED_MS = 5_000;
// for a scenario from its place in the queue on
const LIFE_MS = 240_000;
// how often an account is connected, the first time included
const CONNECTS = 2;
const OWNER = 'ann';
const FINAL = ['succeeded', 'failed', 'cancelled', 'expired', 'skipped'];
// tools that ask a person, and those that are called beside them, by the scenarios that have these
const ASKING = {
  'sep-2322-client-request-state': [
    'test_mrtr_echo_state',
    'test_mrtr_no_state',
    'test_mrtr_unrelated',
    'test_mrtr_no_result_type',
  ],
  'elicitation-sep1034-client-defaults': ['test_client_elicitation_defaults'],
};
// the id that the suite expects of a client that shows itself by a document: the operator says where that lies
const METADATA_DOCUMENT = 'https://conformance-test.local/client-metadata.json';

const url = process.argv.at(-1);
const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const asksForAccount = scenario.startsWith('auth/');
const asking = ASKING[scenario] ?? [];
const isOfOldEra = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION < '2026-07-28';

const say = (...words) => console.error(...words);

async function until(look, patience = PATIENCE_MS) {
  const end = Date.now() + patience;
  for (;;) {
    const found = await look();
    if (found || Date.now() > end) return found;
    await pause(LOOK_MS);
  }
}

// A place among those that work at once; given back at the end of the process.
async function place() {
  for (;;) {
    for (let n = 0; n < PLACES; n += 1) {
      const taken = join(process.env.REVEILLE_TEST_QUEUE, `place-${n}`);
      try {
        mkdirSync(taken);
        process.on('exit', () => rmSync(taken, { recursive: true, force: true }));
        return;
      } catch (error) {
        if (error.code !== 'EEXIST') throw error;
      }
    }
    await pause(LOOK_MS);
  }
}

function freePort() {
  return new Promise((found) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => found(port));
    });
  });
}

// The settings of an account at the server: found out from its address alone, but for what the scenario gives.
function account() {
  const given = scenario === 'auth/basic-cimd' ? { client_id: METADATA_DOCUMENT } : context;
  const keys = ['client_id', 'client_secret', 'issuer'].filter((key) => given[key]);
  return ['[oauth.suite]', `resource = "${url}"`, ...keys.map((key) => `${key} = "${given[key]}"`)];
}

function config(port) {
  return [
    '[server]',
    `public_url = "http://127.0.0.1:${port}"`,
    '[egress]',
    'allow = ["localhost:*", "127.0.0.1:*"]',
    // nobody is asked before a call
    '[approvals]',
    'matrix = { "side_effect.medium" = "auto", "side_effect.high" = "auto" }',
    ...(asksForAccount ? account() : []),
    '[[mcp_servers]]',
    'name = "suite"',
    `url = "${url}"`,
    ...(asksForAccount ? ['credential = "suite"', `listed_as = "${OWNER}"`] : []),
    // before 2026-07-28 a server asks in mid-call, and its tool is called again with the answer
    ...(isOfOldEra ? asking.flatMap((tool) => [`[mcp_servers.tools.${tool}]`, 'repeats_for_input = true']) : []),
    ...(asking.length ? ['[llm.models.main]', 'provider = "scripted"', 'scenario = "scenario.json"'] : []),
  ].join('\n');
}

// The model's part: it calls the tool that it is told, and says that it is done.
function script() {
  const steps = (tool) => [
    { when: tool, turn: 1, calls: [{ tool: `suite.${tool}` }] },
    { when: tool, text: 'It is done.' },
  ];
  return JSON.stringify({ steps: asking.flatMap(steps) });
}

class Service {
  static async start() {
    const service = new Service();
    const [dir, port] = [mkdtempSync(join(tmpdir(), 'reveille-conformance-')), await freePort()];
    writeFileSync(join(dir, 'reveille.toml'), config(port));
    writeFileSync(join(dir, 'scenario.json'), script());
    service.url = `http://127.0.0.1:${port}`;
    const program = spawn(process.env.REVEILLE_TEST_BINARY, ['serve', '--listen', `127.0.0.1:${port}`], {
      cwd: dir,
      env: { PATH: '/usr/bin:/bin', RUST_BACKTRACE: '1' },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    process.on('exit', () => {
      program.kill('SIGKILL');
      rmSync(dir, { recursive: true, force: true });
    });
    let printed = '';
    program.stdout.on('data', (part) => (printed += part));
    await until(() => printed.includes('listening on') || program.exitCode !== null);
    if (!printed.includes('listening on')) throw new Error(`it did not start: ${printed}`);
    service.token = readFileSync(join(dir, 'data/admin.token'), 'utf8').trim();
    return service;
  }

  async ask(method, path, body) {
    const headers = { authorization: `Bearer ${this.token}`, ...(body && { 'content-type': 'application/json' }) };
    const answer = await fetch(this.url + path, { method, headers, ...(body && { body: JSON.stringify(body) }) });
    const value = await answer.json();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(value)}`);
    return value;
  }

  // Whether the server has listed its tools.
  async isConnected() {
    const { mcp_servers: servers } = await this.ask('GET', '/readyz');
    return servers[0].state === 'connected';
  }

  // The tools of the server, by their names there.
  async tools() {
    const { items } = await this.ask('GET', '/v1/tools');
    const listed = items.filter((tool) => tool.source === 'mcp');
    return new Map(listed.map((tool) => [tool.name.slice('suite.'.length), tool]));
  }

  // A run that makes this call: of an agent where the tool asks a person, for which no step of a pipeline waits.
  async begin({ name, arguments: args }) {
    const steps = [{ name: 'call', tool: { name: `suite.${name}`, args } }];
    const work = asking.length
      ? { action: { instruction: name } }
      : { executor: 'pipeline', action: { config: { steps } } };
    const trigger = { type: 'schedule', cron: '@yearly' };
    const task = await this.ask('POST', '/v1/tasks', { tenant_id: OWNER, name, trigger, ...work, output: null });
    return (await this.ask('POST', `/v1/tasks/${task.id}/run`, {})).id;
  }

  run(id) {
    return this.ask('GET', `/v1/runs/${id}`);
  }

  // Gives each open question of a run the values that its schema has for defaults, or any that fit.
  async answer(run) {
    const { items } = await this.ask('GET', `/v1/approvals?run_id=${run.id}&status=pending`);
    for (const { id, parameters } of items) {
      await this.ask('POST', `/v1/runs/${run.id}/input`, { input_id: id, fields: sample(parameters, true) });
    }
  }
}

// A value that fits a schema; of an object the properties that it requires, or all.
function sample(schema, whole = false) {
  if ('default' in schema) return schema.default;
  if (schema.enum) return schema.enum[0];
  const properties = schema.properties ?? {};
  switch (schema.type) {
    case 'number':
    case 'integer':
      return 2;
    case 'string':
      return 'text';
    case 'boolean':
      return true;
    case 'array':
      return [];
    default: {
      const names = whole ? Object.keys(properties) : (schema.required ?? []);
      return Object.fromEntries(names.map((name) => [name, sample(properties[name] ?? {}, whole)]));
    }
  }
}

// The calls of this scenario: those that it names, else one of each tool that there is.
function calls(tools) {
  if (context.toolCalls) return context.toolCalls;
  if (scenario === 'json-schema-2020-12-preservation') {
    const schema = tools.get('json_schema_2020_12_tool')?.parameters;
    return [{ name: 'json_schema_echo', arguments: { schema } }];
  }
  return [...tools].map(([name, tool]) => ({ name, arguments: sample(tool.parameters) }));
}

// `null` is what an optional argument is when it is left out, and no schema that says its type takes it.
function withoutNulls(call) {
  const given = Object.entries(call.arguments).filter(([, value]) => value !== null);
  return { ...call, arguments: Object.fromEntries(given) };
}

// Uses the server: whether it was connected and no call of it failed.
async function use(service) {
  if (!(await until(() => service.isConnected()))) {
    say('the server is not connected', JSON.stringify(await service.ask('GET', '/readyz')));
    return false;
  }
  let tools = new Map();
  await until(async () => (tools = await service.tools()).size > 0, LISTED_MS);
  const begun = await Promise.allSettled(calls(tools).map((call) => service.begin(withoutNulls(call))));
  begun.filter(({ reason }) => reason).forEach(({ reason }) => say(String(reason)));
  const ids = begun.filter(({ value }) => value).map(({ value }) => value);
  const all = () => Promise.all(ids.map((id) => service.run(id)));
  const rests = (run) => FINAL.includes(run.state) || run.state === 'waiting_for_input';
  // all others have made their calls before one of them is answered
  await until(async () => (await all()).every(rests));
  for (const run of (await all()).filter((run) => run.state === 'waiting_for_input')) await service.answer(run);
  await until(async () => (await all()).every((run) => FINAL.includes(run.state)));
  const ended = await all();
  for (const { state, error } of ended) say(state, JSON.stringify(error ?? null));
  return ended.every((run) => run.state === 'succeeded');
}

const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"' };
function plain(text) {
  return text
    .replace(/&#(x?)([0-9a-f]+);/gi, (_, hex, digits) => String.fromCodePoint(parseInt(digits, hex ? 16 : 10)))
    .replace(/&(amp|lt|gt|quot);/g, (_, name) => ENTITIES[name]);
}

// The hidden fields of a form.
function hidden(page) {
  const fields = new URLSearchParams();
  for (const [input] of page.matchAll(/<input[^>]*type="hidden"[^>]*>/g)) {
    fields.set(input.match(/name="([^"]*)"/)[1], plain(input.match(/value="([^"]*)"/)[1]));
  }
  return fields;
}

// Connects the account, as its owner does in a browser: opens the link, which the provider agrees to at once, is sent
// back, and presses the button.
async function connect(service) {
  const link = await service.ask('GET', `/v1/credentials/suite/primary/connect?tenant_id=${OWNER}`);
  const agreed = await fetch(link.url, { redirect: 'manual' });
  const back = agreed.headers.get('location');
  if (!back?.startsWith(`${service.url}/`)) throw new Error(`sent to ${back} by ${link.url}`);
  const page = await fetch(back);
  const text = await page.text();
  const fields = hidden(text);
  if (!page.ok || !fields.size) throw new Error(`${page.status}: ${text}`);
  const headers = { cookie: page.headers.get('set-cookie').split(';')[0], origin: service.url };
  const done = await fetch(`${service.url}/oauth/callback`, { method: 'POST', body: fields, headers });
  if (!done.ok) throw new Error(`${done.status}: ${await done.text()}`);
}

async function main() {
  await place();
  setTimeout(() => process.exit(1), LIFE_MS).unref();
  const service = await Service.start();
  if (!asksForAccount) return use(service);
  for (let n = 0; n < CONNECTS; n += 1) {
    await connect(service);
    if (await use(service)) return true;
  }
  return false;
}

for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(1));
main().then(
  (fine) => process.exit(fine ? 0 : 1),
  (error) => {
    say(String(error));
    process.exit(1);
  },
);
