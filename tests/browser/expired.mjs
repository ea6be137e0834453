// Comes back to the dashboard with a session whose time is over.
import assert from 'node:assert/strict';
import { base, desk, frame, given, go, leave, signIn } from './desk.mjs';

const page = await desk({ storageState: given.state });
await go(page, '/ui/tasks');
assert.ok(page.url().startsWith(`${base}/ui/login`), 'a session whose time is over is good');
await frame(page);
await signIn(page, given.admin, '/ui/tasks');
assert.equal(new URL(page.url()).pathname, '/ui/tasks');
await leave();
