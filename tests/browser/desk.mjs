// A desktop browser that looks at the dashboard as a person who is strict: no request to elsewhere, no complaint in the
// console, nothing against the policy of the page, no field without a name, all in reach of the keyboard.
//
// Reads from standard input what the test has prepared: {chromium, images, base, …}. The browser reaches the service
// through a wire of ours, which can be cut.
import assert from 'node:assert/strict';
import { mkdirSync, statSync } from 'node:fs';
import { createServer, connect } from 'node:net';
import { join } from 'node:path';
import { AxeBuilder } from '@axe-core/playwright';
import { chromium } from 'playwright-core';

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
export const given = JSON.parse(Buffer.concat(chunks).toString());
mkdirSync(given.images, { recursive: true });

// Largest picture that a README can bear.
const LARGEST = 200 * 1024;
export const DESK = { width: 1280, height: 800 };
export const NARROW = { width: 320, height: 720 };
const wrong = [];

// ---------------------------------------------------------------- the wire

const target = new URL(given.base);
const open = new Set();
const wire = createServer((near) => {
    const far = connect(Number(target.port), target.hostname);
    for (const [one, other] of [[near, far], [far, near]]) {
        open.add(one);
        one.pipe(other);
        one.on('error', () => other.destroy());
        one.on('close', () => open.delete(one));
    }
});
await new Promise((listening) => wire.listen(0, '127.0.0.1', listening));

export const base = `http://127.0.0.1:${wire.address().port}`;

// Cuts every connection there is; new ones pass.
export function cut() {
    for (const socket of open) socket.destroy();
}

// ---------------------------------------------------------------- the browser

const browser = await chromium.launch({ executablePath: given.chromium, args: ['--no-sandbox', '--disable-gpu'] });

// A browser of its own for a person, whose every request and complaint is looked at.
export async function desk({ script = true, colorScheme = 'light', viewport = DESK, storageState } = {}) {
    const context = await browser.newContext({
        javaScriptEnabled: script, colorScheme, viewport, storageState, locale: 'en-GB', timezoneId: 'Europe/Berlin',
        reducedMotion: 'reduce',
    });
    await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: base });
    const page = await context.newPage();
    page.on('request', (request) => {
        if (new URL(request.url()).origin !== base) wrong.push(`a request to ${request.url()}`);
        if (request.headers().referer) wrong.push(`a referrer ${request.headers().referer}`);
    });
    page.on('pageerror', (error) => wrong.push(`a script error on ${page.url()}: ${error.message}`));
    page.on('console', (message) => {
        // the browser remarks on pages that are answered with 4xx, and on connections that were cut
        const remark = /^Failed to load resource: (the server responded with a status of 4\d\d|net::ERR_)/;
        if (!remark.test(message.text()) && ['error', 'warning'].includes(message.type())) {
            wrong.push(`the console of ${page.url()}: ${message.text()}`);
        }
    });
    page.on('dialog', (dialog) => {
        wrong.push(`a dialog on ${page.url()}: ${dialog.message()}`);
        dialog.dismiss();
    });
    return page;
}

// Opens a page, which has this status.
export async function go(page, path, status = 200) {
    const answer = await page.goto(base + path);
    assert.equal(answer.status(), status, path);
    return answer;
}

// Pastes a token into the page and presses Enter; answers once the dashboard is there.
export async function signIn(page, token, path = '/ui/login') {
    await go(page, path);
    await reach(page, 'input[name="token"]');
    await page.keyboard.type(token);
    await press(page);
    assert.ok(!page.url().includes('/ui/login'), `the token is not taken: ${await text(page)}`);
}

// ---------------------------------------------------------------- looks

export const text = (page) => page.textContent('main');
export const shows = async (page, wanted) => assert.ok((await text(page)).includes(wanted), `“${wanted}” is not shown on ${page.url()}`);
export const count = (page, selector) => page.locator(selector).count();

// What holds of every page, at this width; no script has changed one that is `still`.
export async function frame(page, still = false) {
    const found = await page.evaluate((isStill) => {
        const controls = [...document.querySelectorAll('input:not([type=hidden]), select, textarea')];
        const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
        const box = (element) => element.getBoundingClientRect();
        const beyond = [...document.querySelectorAll('main *')].filter((element) => box(element).right > innerWidth + 1);
        const name = (element) => `${element.tagName.toLowerCase()}.${element.className?.baseVal ?? element.className}`;
        return {
            headings: document.querySelectorAll('h1').length,
            wide,
            beyond: wide > 0 ? beyond.slice(0, 5).map(name) : [],
            nameless: controls.filter((control) => control.labels.length === 0 && !control.ariaLabel).map((control) => control.name),
            inline: document.querySelectorAll(`style, script:not([src]), [onclick], [onload]${isStill ? ', [style]' : ''}`).length,
        };
    }, still);
    assert.deepEqual(found, { headings: 1, wide: 0, beyond: [], nameless: [], inline: 0 }, page.url());
}

// What axe finds. Frames of other origins are not looked into: there are none.
export async function axe(page, rules) {
    const builder = new AxeBuilder({ page }).setLegacyMode();
    const { violations } = await (rules ? builder.withRules(rules) : builder).analyze();
    const told = violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map((node) => node.html).join(' | ')}`);
    assert.deepEqual(told, [], page.url());
}

// A picture of what the screen shows.
export async function picture(page, name) {
    await page.mouse.move(0, 0);
    const path = join(given.images, `dashboard-${name}.png`);
    await page.screenshot({ path });
    assert.ok(statSync(path).size < LARGEST, `${path} has ${statSync(path).size} bytes`);
}

// ---------------------------------------------------------------- the keyboard

// Presses Tab until the focus is on what is wanted; nothing is ever clicked.
export async function reach(page, wanted, says) {
    for (let presses = 0; presses < 200; presses += 1) {
        await page.keyboard.press('Tab');
        const isThere = await page.evaluate(([selector, words]) => {
            const focused = document.activeElement;
            return focused?.matches(selector) && (!words || focused.textContent.trim().startsWith(words));
        }, [wanted, says]);
        if (isThere) {
            const outlined = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
            assert.notEqual(outlined, 'none', `the focus on ${wanted} can't be seen`);
            return;
        }
    }
    assert.fail(`${wanted} ${says ?? ''} can't be reached by keyboard on ${page.url()}`);
}

// Presses a key, which leads to another page.
export async function press(page, key = 'Enter') {
    await Promise.all([page.waitForNavigation(), page.keyboard.press(key)]);
}

// ---------------------------------------------------------------- the API

// Asks the API as the operator.
export async function api(method, path, body) {
    const answer = await fetch(given.base + path, {
        method,
        headers: { authorization: `Bearer ${given.admin}`, 'content-type': 'application/json' },
        body: body && JSON.stringify(body),
    });
    assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
    return answer.status === 204 ? null : answer.json();
}

// Waits until a look at something is true.
export async function until(look, what) {
    for (let tries = 0; tries < 300; tries += 1) {
        if (await look()) return;
        await new Promise((waited) => setTimeout(waited, 100));
    }
    assert.fail(`not in time: ${what}`);
}

// Ends the visit; what went wrong on the way fails it.
export async function leave() {
    await browser.close();
    cut();
    wire.close();
    assert.deepEqual(wrong, []);
}
