// A certified OAuth 2 and OpenID provider (oidc-provider) for the tests of credentials.
//
// Started with one JSON argument: { redirect, ttl }. Prints {"port": …} once it listens. Everything below /test/ is the
// test's hand on it: it moves the clock, breaks the token endpoint, takes consent back, and counts.

import { createPrivateKey, generateKeyPairSync, randomBytes } from 'node:crypto';
import http from 'node:http';
import { Provider } from 'oidc-provider';

const { redirect, ttl } = JSON.parse(process.argv[2]);

// the provider reads Date.now everywhere; the tests' clock stands still and is moved
const realNow = Date.now.bind(Date);
let offset = 0;
Date.now = () => realNow() + offset;

// Goes through PEM: Node 20 deadlocks when a key is exported while the job that generated it is collected as garbage.
const pem = (type) => ({ type, format: 'pem' });
const made = generateKeyPairSync('rsa', {
  modulusLength: 2048,
  privateKeyEncoding: pem('pkcs8'),
  publicKeyEncoding: pem('spki'),
});
const privateKey = createPrivateKey(made.privateKey);
const grants = new Set();
const seen = { asked: 0, granted: {}, refused: [] };
let fault = { mode: 'none', times: 0, ms: 0 };
let release = () => {};

const server = http.createServer();
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

const client = (id, method) => ({
  client_id: id,
  client_secret: `${id}-secret-${'s'.repeat(24)}`,
  redirect_uris: [redirect],
  grant_types: ['authorization_code', 'refresh_token'],
  response_types: ['code'],
  token_endpoint_auth_method: method,
});

const provider = new Provider(issuer, {
  clients: [client('reveille', 'client_secret_basic'), client('reveille-body', 'client_secret_post')],
  jwks: { keys: [{ ...privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'RS256', kid: 'test' }] },
  cookies: { keys: [randomBytes(16).toString('hex')] },
  pkce: { required: () => true },
  features: { devInteractions: { enabled: false }, introspection: { enabled: true }, revocation: { enabled: true } },
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
  issueRefreshToken: () => true,
  rotateRefreshToken: true,
  ttl: { AccessToken: ttl, RefreshToken: 30 * 86400, Grant: 30 * 86400, Session: 86400, Interaction: 600 },
  findAccount: (ctx, sub) => ({ accountId: sub, claims: () => ({ sub }) }),
  scopes: ['openid', 'offline_access'],
});
provider.on('grant.success', (ctx) => {
  const type = ctx.oidc.params.grant_type;
  seen.granted[type] = (seen.granted[type] ?? 0) + 1;
});
provider.on('grant.error', (ctx, error) => seen.refused.push(`${ctx.oidc.params?.grant_type}: ${error.error}`));
provider.on('server_error', (ctx, error) => console.error(error));
const oauth = provider.callback();

const body = async (req) => {
  let text = '';
  for await (const part of req) text += part;
  return text;
};
const json = (res, value) => res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(value));

// One page: who logs in, and whether they agree.
async function interact(req, res) {
  const details = await provider.interactionDetails(req, res);
  if (req.method === 'GET') {
    const form = `<!doctype html><html lang="en"><title>Sign in</title><form method="post">
<label>Login <input name="login" required></label>
<button name="do" value="agree">Agree</button> <button name="do" value="refuse" formnovalidate>Refuse</button></form></html>`;
    res.writeHead(200, { 'content-type': 'text/html; charset=utf-8' }).end(form);
    return;
  }
  const sent = new URLSearchParams(await body(req));
  if (sent.get('do') !== 'agree') {
    const result = { error: 'access_denied', error_description: 'End-User <b>aborted</b> the interaction' };
    await provider.interactionFinished(req, res, result, { mergeWithLastSubmission: false });
    return;
  }
  const grant = new provider.Grant({ accountId: sent.get('login'), clientId: details.params.client_id });
  grant.addOIDCScope(details.params.scope);
  const grantId = await grant.save();
  grants.add(grantId);
  const result = { login: { accountId: sent.get('login') }, consent: { grantId } };
  await provider.interactionFinished(req, res, result, { mergeWithLastSubmission: false });
}

const hand = {
  '/test/seen': () => seen,
  '/test/clock': ({ ms }) => void (offset = ms - realNow()),
  '/test/fault': (wish) => void (fault = { ms: 0, ...wish }),
  '/test/release': () => void release(),
  '/test/revoke': async () => {
    for (const id of grants) {
      await Promise.all(['AccessToken', 'RefreshToken'].map((kind) => provider[kind].revokeByGrantId(id)));
      await (await provider.Grant.find(id))?.destroy();
    }
    grants.clear();
  },
};

// The token endpoint as the tests want it: it hangs, is down, does the work and loses the answer, takes its time, or
// keeps the answer until it is let go.
async function token(req, res) {
  seen.asked += 1;
  const { mode, ms } = fault.times > 0 ? fault : { mode: 'none' };
  fault.times -= 1;
  switch (mode) {
    case 'hang':
      return;
    case 'down':
      res.writeHead(503, { 'content-type': 'text/plain' }).end('down for repair');
      return;
    case 'lose': {
      const cut = () => void req.socket.destroy();
      Object.assign(res, { write: () => true, end: () => (cut(), res) });
      break;
    }
    case 'slow': {
      const end = res.end.bind(res);
      res.end = (...args) => (setTimeout(() => end(...args), ms), res);
      break;
    }
    case 'keep': {
      const end = res.end.bind(res);
      const released = new Promise((resolve) => (release = resolve));
      res.end = (...args) => (released.then(() => end(...args)), res);
      break;
    }
    default:
  }
  oauth(req, res);
}

server.on('request', async (req, res) => {
  try {
    const { pathname } = new URL(req.url, issuer);
    if (hand[pathname]) {
      const wish = JSON.parse((await body(req)) || '{}');
      json(res, (await hand[pathname](wish)) ?? {});
    } else if (pathname.startsWith('/interaction/')) {
      await interact(req, res);
    } else if (pathname === '/token') {
      await token(req, res);
    } else {
      oauth(req, res);
    }
  } catch (error) {
    console.error(error);
    res.writeHead(500).end(String(error));
  }
});

// ends with the test that started it, even when that is killed
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
console.log(JSON.stringify({ port: server.address().port }));
