// Opens the approval pages as a person does: on a phone, by keyboard alone, in the light and in the dark.
//
// Reads from standard input what tests/it/approvals/browser.rs has prepared: {chromium, images, base, pages}. Fails on
// the first thing that is wrong: a script error, a request to elsewhere, a field without a name, a page that is too wide.
import assert from 'node:assert/strict';
import { mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { chromium: executablePath, images, base, pages } = JSON.parse(Buffer.concat(chunks).toString());
mkdirSync(images, { recursive: true });

const PHONE = { viewport: { width: 390, height: 844 }, locale: 'en-GB' };
const LARGEST = 100 * 1024;
const TALLEST = 1150;
const wrong = [];

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] });

// A page of its own, whose every request and complaint is looked at.
async function phone(colorScheme = 'light') {
    const context = await browser.newContext({ ...PHONE, colorScheme });
    const page = await context.newPage();
    page.on('request', (request) => {
        if (new URL(request.url()).origin !== base) wrong.push(`a request to ${request.url()}`);
        if (request.headers().referer) wrong.push(`a referrer ${request.headers().referer}`);
    });
    page.on('pageerror', (error) => wrong.push(`a script error: ${error.message}`));
    page.on('console', (message) => {
        // the browser remarks on every page that is answered with 4xx
        const remark = /^Failed to load resource: the server responded with a status of 4\d\d/.test(message.text());
        if (!remark && ['error', 'warning'].includes(message.type())) wrong.push(`the console: ${message.text()}`);
    });
    return page;
}

async function open(page, path, status = 200) {
    const answer = await page.goto(base + path);
    assert.equal(answer.status(), status, path);
}

// What holds of every state of the page; then its picture.
async function look(page, name) {
    const found = await page.evaluate(() => {
        const controls = [...document.querySelectorAll('input:not([type=hidden]), select, textarea')];
        return {
            wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
            nameless: controls.filter((control) => control.labels.length === 0).map((control) => control.name),
            headings: document.querySelectorAll('h1').length,
            scripts: document.scripts.length,
            small: [...document.querySelectorAll('.actions button')].filter((button) => button.offsetHeight < 44).length,
        };
    });
    assert.deepEqual(found, { wide: 0, nameless: [], headings: 1, scripts: 0, small: 0 }, name);
    const path = join(images, `${name}.png`);
    // the upper part, as much as a README can bear
    const height = await page.evaluate((most) => Math.min(document.documentElement.scrollHeight, most), TALLEST);
    await page.screenshot({ path, fullPage: true, clip: { x: 0, y: 0, width: PHONE.viewport.width, height } });
    assert.ok(statSync(path).size < LARGEST, `${name}.png has ${statSync(path).size} bytes`);
}

// Presses Tab until the focus is on what is wanted; nothing is ever clicked.
async function reach(page, wanted) {
    for (let presses = 0; presses < 60; presses += 1) {
        await page.keyboard.press('Tab');
        const isThere = await page.evaluate((selector) => document.activeElement?.matches(selector), wanted);
        if (isThere) {
            const outlined = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
            assert.notEqual(outlined, 'none', `the focus on ${wanted} can't be seen`);
            return;
        }
    }
    assert.fail(`${wanted} can't be reached by keyboard`);
}

async function press(page) {
    await Promise.all([page.waitForNavigation(), page.keyboard.press('Enter')]);
}

const shows = async (page, text) => assert.ok((await page.textContent('main')).includes(text), `“${text}” is not shown`);

// two questions at once: one is edited, one cancelled
{
    const page = await phone();
    await open(page, pages.two);
    await shows(page, 'Your approvals are needed');
    await look(page, 'approval-pending');
    await reach(page, 'summary');
    await page.keyboard.press('Enter');
    await reach(page, '#i0f1');
    await page.keyboard.press('ControlOrMeta+A');
    await page.keyboard.type('The build is green');
    // the Enter key in a field shows what was changed, and decides nothing
    await press(page);
    await shows(page, 'Nothing was decided yet: look at what you changed, then approve it.');
    await look(page, 'approval-changed');
    await reach(page, 'button[value="approve:0"]');
    await press(page);
    await shows(page, 'Approved with changes');
    await look(page, 'approval-partly');
    await reach(page, 'button[value="cancel:1"]');
    await press(page);
    assert.ok(page.url().startsWith(`${base}/approvals/outcome/`), page.url());
    assert.ok(!page.url().includes(pages.two.split('/').pop()), 'the token is in the address of the outcome');
    await shows(page, 'It was not executed. The agent was told.');
    await look(page, 'approval-outcome');
    await open(page, pages.two);
    await look(page, 'approval-decided');
}

// a fault stands beside its field, and what was typed is kept
{
    const page = await phone();
    await open(page, pages.grave);
    await reach(page, 'summary');
    await page.keyboard.press('Enter');
    await reach(page, '#i0f1');
    await page.keyboard.press('ControlOrMeta+A');
    await page.keyboard.type('This text is a good deal too long');
    await reach(page, 'button[value="approve:0"]');
    await press(page);
    const beside = await page.getAttribute('#i0f1', 'aria-describedby');
    assert.equal(await page.textContent(`#${beside.split(' ')[1]}`), 'the value is longer than 30 characters');
    await shows(page, 'has to be typed as it is shown');
    await look(page, 'approval-fault');
}

for (const [name, path, status] of [
    ['approval-done', pages.done, 200],
    ['approval-held', pages.held, 200],
    ['approval-expired', pages.expired, 200],
    ['approval-unknown', '/approvals/unknown', 404],
    ['approval-right-to-left', pages.rightToLeft, 200],
]) {
    const page = await phone();
    await open(page, path, status);
    await look(page, name);
}

// in the dark
{
    const page = await phone('dark');
    await open(page, pages.dark);
    const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(dark, 'rgb(17, 19, 22)');
    await look(page, 'approval-dark');
}

await browser.close();
assert.deepEqual(wrong, []);
