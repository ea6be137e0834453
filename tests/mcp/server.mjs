// An MCP server of the official SDK for the tests of tools: of the current revision, over stdio or HTTP.
//
// Started with one JSON argument: { plan, journal, http }. Over HTTP it prints {"port": …} once it listens. `plan` is a
// file that says what it serves, and is obeyed whenever it changes: { echo: a description, hide: [names], more: { name:
// description }, tokens: [those that a request may carry] }. `journal` is a file to which it adds a line of JSON for each
// start, message and call; over HTTP a line holds the token of its request.

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
  route: {
    config: { description: 'Says where it was sent.', inputSchema: schema({ region: { ...string, 'x-mcp-header': 'Region' } }) },
    call: async ({ region }) => text(region),
  },
  confirm: {
    config: { description: 'Asks a person.', inputSchema: schema({ env: string }) },
    call: async ({ env }, ctx) => {
      const form = { type: 'object', properties: { sure: { type: 'boolean' } }, required: ['sure'] };
      const answer = acceptedContent(ctx.mcpReq.inputResponses, 'sure', fromJsonSchema(form));
      note({ confirm: env, answer: answer ?? null });
      if (answer?.sure === true) return text(`deployed to ${env}`);
      const asked = inputRequired.elicit({ message: `Deploy to ${env}?`, requestedSchema: form });
      return inputRequired({ requestState: `s-${env}`, inputRequests: { sure: asked } });
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
      const { tokens } = plan();
      if (tokens && !tokens.includes(token)) {
        response.writeHead(401, { 'www-authenticate': 'Bearer' }).end();
      } else {
        answer(asked, response);
      }
    });
  });
  server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));
}

note({ started: process.pid });
if (options.http) overHttp();
else overStdio();
