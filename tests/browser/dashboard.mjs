// Opens the dashboard as people do: with and without script, by keyboard alone, on a narrow screen, in the dark, while
// runs go on and the wire is cut; and as people who would do harm.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { DESK, NARROW, api, axe, base, count, cut, desk, frame, given, go, leave, picture, press, reach, shows, signIn, text, until } from './desk.mjs';

const PAGES = [
    '/ui', '/ui/approvals', '/ui/inbox', '/ui/tasks', '/ui/runs', '/ui/events', '/ui/dead-letters', '/ui/deliveries',
    '/ui/conversations', '/ui/memory', '/ui/recipients', '/ui/credentials', '/ui/tools', '/ui/skills', '/ui/budgets',
    '/ui/usage', '/ui/audit', '/ui/system',
];
// Parts of pages, and files: no pages of their own.
const PART = /\/(rows|live|json|markdown|export|find|body|text|end|failure|assets|login|logout)(\/|$)/;
// Rows of a run that its page has at first, at most, with those of what else stands on it.
const FIRST_ROWS = 300;
const figures = {};

// The kind of a page: its address without ids and names, and with the parameters that make it another one.
function kind(address) {
    const { pathname, searchParams } = new URL(address, base);
    const parts = pathname.split('/').map((part, at) => (at < 3 || /^[a-z-]{2,20}$/.test(part) ? part : '*'));
    return `${parts.join('/')} ${searchParams.get('view') ?? ''}${searchParams.get('by') ?? ''}`;
}

// The addresses to which a page leads.
async function links(page) {
    const found = await page.evaluate(() => [...document.querySelectorAll('main a[href^="/ui"]')].map((link) => link.getAttribute('href')));
    return found.map((link) => new URL(link, base)).map((url) => url.pathname + url.search);
}

// ---------------------------------------------------------------- signed out, and the way in by keyboard

const page = await desk();
await go(page, '/ui/runs');
assert.ok(page.url().startsWith(`${base}/ui/login`), 'the way to a page leads over the login');
await frame(page);
await axe(page);
await reach(page, 'input[name="token"]');
await page.keyboard.type('rv_admin_nonsense');
await press(page);
await shows(page, 'You are not signed in');
await signIn(page, given.admin, '/ui/runs');
assert.equal(new URL(page.url()).pathname, '/ui/runs', 'the login leads to the page that was asked for');

// ---------------------------------------------------------------- pictures of the main pages

for (const [name, path] of [
    ['today', '/ui'], ['tasks', '/ui/tasks'], ['task', `/ui/tasks/${given.task}`], ['run', `/ui/runs/${given.run}`],
    ['usage', '/ui/usage'],
]) {
    await go(page, path);
    await picture(page, name);
}

// ---------------------------------------------------------------- every page: what holds of each, and what axe says

// one of each kind is looked at
const seen = new Set();
const queue = [...PAGES, `/ui/tasks/${given.task}`, `/ui/runs/${given.run}`, `/ui/approvals/${given.approval}`,
    `/ui/runs/${given.run}?view=transcript`, '/ui/usage?by=task', '/ui/usage?by=tool', '/ui/tools/current_time',
    '/ui/recipients/ann'];
const looked = [];
while (queue.length > 0) {
    const path = queue.shift();
    if (seen.has(kind(path)) || PART.test(path.split('?')[0])) continue;
    seen.add(kind(path));
    const answer = await page.goto(base + path);
    // a page that asks for something first says so
    assert.ok([200, 422].includes(answer.status()), `${path}: ${answer.status()}`);
    if (!answer.headers()['content-type'].startsWith('text/html')) continue;
    looked.push(path);
    await frame(page);
    await axe(page);
    await page.emulateMedia({ colorScheme: 'dark' });
    await axe(page, ['color-contrast']);
    await page.emulateMedia({ colorScheme: 'light' });
    await page.setViewportSize(NARROW);
    await frame(page);
    await page.setViewportSize(DESK);
    queue.push(...await links(page));
}
for (const path of PAGES) assert.ok(looked.includes(path), path);
assert.ok(looked.length > PAGES.length + 5, `too few pages: ${looked}`);
figures.pages = looked.length;

// ---------------------------------------------------------------- without script

{
    const still = await desk({ script: false });
    await signIn(still, given.admin);
    for (const path of looked) {
        const answer = await still.goto(base + path);
        assert.ok([200, 422].includes(answer.status()), `${path}: ${answer.status()}`);
        await frame(still, true);
        assert.ok((await text(still)).trim().length > 20, `${path} is empty without script`);
    }
    // filters, and their sentence
    await go(still, '/ui/tasks');
    await reach(still, 'form.filters input[type="text"], form.filters input[type="search"]');
    await still.keyboard.type('Morning mail');
    await press(still);
    assert.match(still.url(), /Morning(\+|%20)mail/, 'the filter is in the address');
    await shows(still, 'Morning mail');
    // an instant is told in full
    assert.ok((await text(still)).includes('UTC'), 'instants are exact without script');
    // a long run goes on page by page
    await go(still, `/ui/runs/${given.long}`);
    assert.ok(await count(still, '[data-row]') <= FIRST_ROWS, 'a long run begins with its first rows');
    await still.context().close();
}

// ---------------------------------------------------------------- keys

{
    await go(page, '/ui');
    await page.keyboard.press('Tab');
    assert.ok(await page.evaluate(() => document.activeElement.matches('a.skip')), 'the first Tab is on the way to the page');
    await page.keyboard.press('Enter');
    assert.equal(await page.evaluate(() => location.hash), '#main');
    await go(page, '/ui');
    await reach(page, 'nav a[href="/ui/runs"]');
    await press(page);
    assert.equal(new URL(page.url()).pathname, '/ui/runs');
    // rows by letters
    const at = () => page.evaluate(() => {
        const rows = [...document.querySelectorAll('[data-row]')];
        return rows.findIndex((row) => row.contains(document.activeElement));
    });
    await page.keyboard.press('j');
    const first = await at();
    await page.keyboard.press('j');
    assert.equal(await at(), first + 1, 'j leads to the next row');
    await page.keyboard.press('k');
    assert.equal(await at(), first, 'k leads back');
    const href = await page.evaluate((row) => document.querySelectorAll('[data-row]')[row].querySelector('a').pathname, first);
    await press(page);
    assert.equal(new URL(page.url()).pathname, href, 'Enter opens the row');
    // the list of keys
    await page.keyboard.press('?');
    await page.waitForSelector('dialog[open]');
    await axe(page);
    await page.keyboard.press('Escape');
    await until(async () => (await count(page, 'dialog[open]')) === 0, 'Escape closes the list of keys');
    // letters are letters in a field
    await go(page, '/ui/tasks');
    await reach(page, 'form.filters input[type="text"], form.filters input[type="search"]');
    await page.keyboard.type('jk?');
    assert.equal(await page.evaluate(() => document.activeElement.value), 'jk?');
    assert.equal(await count(page, 'dialog[open]'), 0);
}

// ---------------------------------------------------------------- a decision by keyboard alone

{
    await go(page, `/ui/approvals/${given.approval}`);
    await reach(page, 'button', 'Approve');
    await press(page);
    await until(async () => (await api('GET', `/v1/approvals/${given.approval}`)).status === 'approved', 'the approval is approved');
    await until(async () => (await api('GET', `/v1/runs/${given.asking}`)).state === 'succeeded', 'the run goes on');
}

// ---------------------------------------------------------------- a run of 5,000 rows

{
    const begun = performance.now();
    await go(page, `/ui/runs/${given.long}`);
    await page.waitForSelector('[data-row]');
    figures.longRunMs = Math.round(performance.now() - begun);
    const rows = await count(page, '[data-row]');
    figures.firstRows = rows;
    assert.ok(rows >= 50 && rows <= FIRST_ROWS, `${rows} rows at first`);
    assert.ok(figures.longRunMs < 5_000, `a long run opens in ${figures.longRunMs} ms`);
    // the rest on demand
    await page.locator('main a[data-more]').click();
    await until(async () => (await count(page, '[data-row]')) > rows, 'more rows of a long run');
}

// ---------------------------------------------------------------- a run that goes on, and a wire that is cut

{
    const { id } = await api('POST', `/v1/tasks/${given.slow}/run`, {});
    await go(page, `/ui/runs/${id}`);
    const opened = await page.evaluate(() => performance.timeOrigin);
    await until(async () => (await text(page)).includes('step 2'), 'rows come by themselves');
    cut();
    await until(async () => (await text(page)).includes('step 5'), 'rows go on to come once the wire is back');
    await until(async () => (await text(page)).includes('succeeded'), 'the end is told');
    const shown = await text(page);
    for (let step = 1; step <= 6; step += 1) assert.ok(shown.includes(`step ${step}`), `step ${step} is missing`);
    figures.reloaded = (await page.evaluate(() => performance.timeOrigin)) !== opened;
    await frame(page);
}

// ---------------------------------------------------------------- words that would do harm

{
    await go(page, `/ui/runs/${given.hostile}`);
    await frame(page);
    const shown = await page.content();
    assert.ok(!shown.includes('<script>alert'), 'a script of a model is markup');
    assert.ok(!/[\u202a-\u202e\u2066-\u2069\u200b]/.test(await text(page)), 'characters that hide are hidden');
    assert.ok((await text(page)).includes('U+202E'), 'characters that hide are seen');
    assert.ok(shown.length < 300_000, `a page with a long line has ${shown.length} characters`);
    await page.setViewportSize(NARROW);
    await frame(page);
    await page.setViewportSize(DESK);
    await go(page, '/ui/tasks?q=%3Cscript%3Ealert(1)%3C/script%3E');
    assert.ok(!(await page.content()).includes('<script>alert'), 'a filter is markup');
}

// ---------------------------------------------------------------- another tenant

{
    const ann = await desk();
    await signIn(ann, given.ann);
    for (const path of [`/ui/tasks/${given.bob.task}`, `/ui/runs/${given.bob.run}`]) {
        await go(ann, path, 404);
        await frame(ann);
    }
    await go(ann, '/ui/tasks');
    assert.ok(!(await text(ann)).includes("Bob's"), 'tasks of another tenant are listed');
    await shows(ann, 'Morning mail');
    await go(ann, '/ui/tools/no_such_tool', 404);

    // a form that no page of the session has sent
    const paused = await ann.evaluate(async (path) => {
        const sent = await fetch(path, { method: 'POST', body: new URLSearchParams({ key: 'k' }), redirect: 'manual' });
        return sent.status;
    }, `/ui/tasks/${given.task}/pause`);
    assert.equal(paused, 403, 'a form without its token is taken');
    assert.equal((await api('GET', `/v1/tasks/${given.task}`)).status, 'active');

    // a page of another site: the browser keeps the session to itself, and the service takes no such form
    const elsewhere = await ann.context().newPage();
    await elsewhere.route('http://evil.example.org/', (route) => route.fulfill({
        contentType: 'text/html',
        body: `<form method="post" action="${base}/ui/tasks/${given.task}/pause"><input name="form_token" value="x"><button>Win</button></form>`,
    }));
    await elsewhere.goto('http://evil.example.org/');
    const [answered] = await Promise.all([elsewhere.waitForResponse(`${base}/**`), elsewhere.click('button')]);
    assert.equal(answered.status(), 403);
    assert.equal((await api('GET', `/v1/tasks/${given.task}`)).status, 'active');
    await elsewhere.close();

    // the token is revoked: its session ends with the next request
    await api('DELETE', `/v1/tokens/${given.annToken}`);
    await go(ann, '/ui/tasks');
    assert.ok(ann.url().startsWith(`${base}/ui/login`), 'the session outlives its token');
    await ann.context().close();
}

// ---------------------------------------------------------------- out again; the session of another browser stays for the next script

{
    const other = await desk();
    await signIn(other, given.admin);
    await other.context().storageState({ path: given.state });
    await go(page, '/ui');
    await reach(page, 'form.reader button');
    await press(page);
    await go(page, '/ui/runs');
    assert.ok(page.url().startsWith(`${base}/ui/login`), 'who signs out is still signed in');
    await go(other, '/ui/runs');
    assert.equal(new URL(other.url()).pathname, '/ui/runs', 'another session ends, too');
}

writeFileSync(given.figures, JSON.stringify(figures));
await leave();
