// A phone-sized browser that looks at every page as a person who is strict: no script, no request to elsewhere, no field
// without a name, nothing wider than the screen, everything in reach of the keyboard.
//
// Reads from standard input what the test has prepared: {chromium, images, base, pages}.
import assert from 'node:assert/strict';
import { mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { chromium: executablePath, images, base, pages: given } = JSON.parse(Buffer.concat(chunks).toString());
mkdirSync(images, { recursive: true });

const PHONE = { viewport: { width: 390, height: 844 }, locale: 'en-GB' };
const LARGEST = 100 * 1024;
const TALLEST = 1150;
const wrong = [];

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] });

// A page of its own, whose every request and complaint is looked at.
export async function phone(colorScheme = 'light') {
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

export async function open(page, path, status = 200) {
    const answer = await page.goto(base + path);
    assert.equal(answer.status(), status, path);
}

// What holds of every state of the page; then its picture.
export async function look(page, name) {
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
export async function reach(page, wanted) {
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

// The id of the element that has the focus.
export const focused = (page) => page.evaluate(() => document.activeElement?.id);

// Whether an element stands on the screen, without a scroll.
export const isInView = (page, selector) =>
    page.evaluate((wanted) => {
        const { top, bottom } = document.querySelector(wanted).getBoundingClientRect();
        return top >= 0 && bottom <= window.innerHeight;
    }, selector);

export async function press(page) {
    await Promise.all([page.waitForNavigation(), page.keyboard.press('Enter')]);
}

export const shows = async (page, text) => assert.ok((await page.textContent('main')).includes(text), `“${text}” is not shown`);

// Ends the visit; what went wrong on the way fails it.
export async function leave() {
    await browser.close();
    assert.deepEqual(wrong, []);
}

export { base, given as pages };
