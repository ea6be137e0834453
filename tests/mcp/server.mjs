// An MCP server of the official SDK for the tests of tools: of the current revision, over stdio or HTTP.
//
// Started with one JSON argument: { plan, journal, http, port }. Over HTTP it prints {"port": …} once it listens. `plan` is a
// file that says what it serves, and is obeyed whenever it changes: { echo: a description, hide: [names], more: { name:
// description }, tokens: [those that a request may carry], challenge: what other requests are told, documents: { path:
// JSON that anybody may read }, forbid: what each call of a tool is told }. `journal` is a file to which it adds a line
// of JSON for each start, message and call; over HTTP a line holds the token of its request.

import { AsyncLocalStorage } from 'node:async_hooks';
import { appendFileSync, readFileSync, watchFile } from 'node:fs';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { McpServer, acceptedContent, createMcpHandler, fromJsonSchema, inputRequired } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';

const options = JSON.parse(process.argv[2] ?? '{}');
const request = new AsyncLocalStorage();

function plan() {
  return options.plan ? JSON.parse(readFileSync(options.plan, 'utf8')) : {};
}

function note(line) {
  if (options.journal) appendFileSync(options.journal, JSON.stringify({ ...line, ...request.getStore() }) + '\n');
}

function schema(properties, required = Object.keys(properties)) {
  return fromJsonSchema({ type: 'object', properties, required, additionalProperties: false });
}

// The request of a round: its id, the state that it hands back, its idempotency key.
function round({ mcpReq }) {
  const key = mcpReq._meta?.['reveille/idempotency-key'] ?? null;
  return { id: mcpReq.id, state: mcpReq.requestState() ?? null, key };
}

const text = (text) => ({ content: [{ type: 'text', text }] });
const string = { type: 'string' };

const TOOLS = {
  echo: {
    config: { description: 'Echoes a text.', inputSchema: schema({ text: string }), annotations: { readOnlyHint: true } },
    call: async ({ text: said }, ctx) => {
      note({ echo: said, meta: ctx.mcpReq._meta ?? null });
      return text(said);
    },
  },
  measure: {
    config: { description: 'Measures.', inputSchema: schema({}), outputSchema: schema({ grams: { type: 'number' } }) },
    call: async () => ({ ...text('{"grams":7}'), structuredContent: { grams: 7 } }),
  },
  die: {
    config: { description: 'Ends the server in the middle of a call.', inputSchema: schema({}) },
    call: async () => {
      note({ died: process.pid });
      process.exit(3);
    },
  },
  hang: {
    config: { description: 'Never answers.', inputSchema: schema({}) },
    call: (_, ctx) => {
      note({ hangs: true });
      const { signal } = ctx.mcpReq;
      return new Promise((_, refuse) => {
        const end = () => {
          note({ cancelled: true });
          refuse(new Error('cancelled'));
        };
        // both messages may have come at once
        if (signal.aborted) end();
        else signal.addEventListener('abort', end);
      });
    },
  },
  climb: {
    config: {
      description: 'Tells how far it is, and now and then how far it was, with a wait behind each step.',
      inputSchema: schema({ count: { type: 'integer' }, say: string, wait: { type: 'integer' } }),
    },
    call: async ({ count, say, wait }, ctx) => {
      const { progressToken } = ctx.mcpReq._meta ?? {};
      const tell = (progress, message) =>
        ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: count, message } });
      for (let done = 1; done <= count; done += 1) {
        await tell(done, `${say} ${done}`);
        if (done > 1) await tell(done - 1, 'backwards');
        await new Promise((go) => setTimeout(go, wait));
      }
      return text(`climbed ${count}`);
    },
  },
  route: {
    config: { description: 'Says where it was sent.', inputSchema: schema({ region: { ...string, 'x-mcp-header': 'Region' } }) },
    call: async ({ region }) => text(region),
  },
  confirm: {
    config: { description: 'Asks a person.', inputSchema: schema({ env: string }) },
    call: async ({ env }, ctx) => {
      const form = { type: 'object', properties: { sure: { type: 'boolean' } }, required: ['sure'] };
      const answer = acceptedContent(ctx.mcpReq.inputResponses, 'sure', fromJsonSchema(form));
      note({ confirm: env, answer: answer ?? null, ...round(ctx) });
      if (answer?.sure === true) return text(`deployed to ${env}`);
      const asked = inputRequired.elicit({ message: `Deploy to ${env}?`, requestedSchema: form });
      return inputRequired({ requestState: `s-${env}`, inputRequests: { sure: asked } });
    },
  },
  survey: {
    config: { description: 'Asks for all kinds of fields, in two requests.', inputSchema: schema({}) },
    call: async (_, ctx) => {
      const { inputResponses: given } = ctx.mcpReq;
      note({ survey: given ?? null, ...round(ctx) });
      if (given?.who && given?.how) return text(JSON.stringify(given));
      const who = {
        name: { ...string, title: 'Name', minLength: 1, maxLength: 40 },
        email: { ...string, format: 'email' },
        age: { type: 'integer', minimum: 0, maximum: 150 },
        days: { type: 'array', items: { ...string, enum: ['mon', 'tue'] }, maxItems: 2 },
      };
      const how = {
        color: { ...string, oneOf: [{ const: 'r', title: 'Red' }, { const: 'b', title: 'Blue' }] },
        loud: { type: 'boolean', default: true },
        weight: { type: 'number', default: 95.5 },
        from: { ...string, format: 'date' },
        site: { ...string, format: 'uri' },
      };
      const ask = (message, properties, required) =>
        inputRequired.elicit({ message, requestedSchema: { type: 'object', properties, required } });
      const inputRequests = { who: ask('Who are you?', who, ['name', 'email']), how: ask('How is it to be?', how, ['color']) };
      return inputRequired({ requestState: 's-survey', inputRequests });
    },
  },
  visit: {
    config: { description: 'Sends a person to a page.', inputSchema: schema({}) },
    call: async (_, ctx) => {
      const { action } = ctx.mcpReq.inputResponses?.page ?? {};
      note({ visit: action ?? null, ...round(ctx) });
      if (action) return text(action === 'accept' ? 'visited' : 'not visited');
      const page = inputRequired.elicitUrl({ message: 'Log in there.', url: 'https://login.example.org/device?code=42' });
      return inputRequired({ requestState: 's-visit', inputRequests: { page } });
    },
  },
  steps: {
    config: { description: 'Asks twice, one after the other.', inputSchema: schema({}) },
    call: async (_, ctx) => {
      const { inputResponses: given } = ctx.mcpReq;
      const before = ctx.mcpReq.requestState();
      note({ steps: given ?? null, ...round(ctx) });
      const ask = (key, requestState) => {
        const form = { type: 'object', properties: { [key]: string }, required: [key] };
        const asked = inputRequired.elicit({ message: `Which ${key}?`, requestedSchema: form });
        return inputRequired({ requestState, inputRequests: { [key]: asked } });
      };
      if (before === undefined) return ask('first', 's-1');
      if (before === 's-1') return ask('second', `s-2 ${given?.first?.content?.first}`);
      return text(`${before}, ${given?.second?.content?.second}`);
    },
  },
  shed: {
    config: { description: 'Has no time at first.', inputSchema: schema({}) },
    call: async (_, ctx) => {
      note({ shed: true, ...round(ctx) });
      return ctx.mcpReq.requestState() === 's-shed' ? text('done now') : inputRequired({ requestState: 's-shed' });
    },
  },
  pry: {
    config: { description: 'Asks for a password.', inputSchema: schema({}) },
    call: async (_, ctx) => {
      note({ pry: true, ...round(ctx) });
      const form = { type: 'object', properties: { password: string }, required: ['password'] };
      const asked = inputRequired.elicit({ message: 'Your password?', requestedSchema: form });
      return inputRequired({ requestState: 's-pry', inputRequests: { asked } });
    },
  },
  sample: {
    config: { description: 'Asks for the words of a model.', inputSchema: schema({}) },
    call: async (_, ctx) => {
      note({ sample: true, ...round(ctx) });
      const messages = [{ role: 'user', content: { type: 'text', text: 'Say hello.' } }];
      const asked = inputRequired.createMessage({ messages, maxTokens: 5 });
      return inputRequired({ requestState: 's-sample', inputRequests: { asked } });
    },
  },
};

// Has the server offer what the plan says.
function obey(server, registered, { echo, hide = [], more = {} }) {
  for (const [name, description] of Object.entries(more)) {
    if (registered[name]) continue;
    registered[name] = server.registerTool(name, { description, inputSchema: schema({}) }, async () => text(name));
  }
  for (const [name, tool] of Object.entries(registered)) {
    const description = more[name] ?? (name === 'echo' && echo) ?? undefined;
    const usual = TOOLS[name]?.config.description;
    const wanted = description || usual;
    if (wanted && tool.description !== wanted) tool.update({ description: wanted });
    const isOffered = !hide.includes(name) && (name in TOOLS || name in more);
    if (tool.enabled !== isOffered) tool.update({ enabled: isOffered });
  }
}

function build() {
  const server = new McpServer({ name: 'fixture', version: '1.0.0' }, { capabilities: { tools: { listChanged: true } } });
  const registered = {};
  for (const [name, { config, call }] of Object.entries(TOOLS)) {
    registered[name] = server.registerTool(name, config, call);
  }
  obey(server, registered, plan());
  return { server, registered };
}

function onPlan(act) {
  if (options.plan) watchFile(options.plan, { interval: 50, persistent: false }, act);
}

function overStdio() {
  serveStdio(() => {
    const { server, registered } = build();
    onPlan(() => obey(server, registered, plan()));
    return server;
  });
  createInterface({ input: process.stdin }).on('line', (line) => note({ received: JSON.parse(line).method ?? null }));
}

function overHttp() {
  const handler = createMcpHandler(() => build().server, {});
  onPlan(() => handler.notify.toolsChanged());
  const answer = toNodeHandler(handler);
  const server = createServer((asked, response) => {
    const token = asked.headers.authorization?.replace('Bearer ', '') ?? null;
    request.run({ token }, () => {
      note({ method: asked.method, received: asked.headers['mcp-method'] ?? null });
      const { tokens, challenge = 'Bearer', documents = {}, forbid } = plan();
      if (documents[asked.url]) {
        response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(documents[asked.url]));
      } else if (tokens && !tokens.includes(token)) {
        response.writeHead(401, { 'www-authenticate': challenge }).end();
      } else if (forbid && asked.headers['mcp-method'] === 'tools/call') {
        response.writeHead(403, { 'www-authenticate': forbid }).end();
      } else {
        answer(asked, response);
      }
    });
  });
  server.listen(options.port ?? 0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));
}

note({ started: process.pid });
if (options.http) overHttp();
else overStdio();
