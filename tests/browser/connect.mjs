// A person connects an account in a real browser: from the link to the provider, back to our page, and its button.
//
// Reads from standard input what the test has prepared: {chromium, images, base, link}.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const { chromium: executablePath, images, base, link } = JSON.parse(Buffer.concat(chunks).toString());
mkdirSync(images, { recursive: true });

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] });
const context = await browser.newContext({ viewport: { width: 390, height: 844 }, locale: 'en-GB' });
const page = await context.newPage();
const wrong = [];
page.on('request', (request) => {
    const { referer } = request.headers();
    if (referer?.startsWith(base)) wrong.push(`a referrer from our page: ${referer}`);
});
page.on('pageerror', (error) => wrong.push(`a script error: ${error.message}`));

const heading = () => page.locator('h1').innerText();

try {
    await page.goto(link);
    await page.getByLabel('Login').fill('ann-at-the-provider');
    await page.getByRole('button', { name: 'Agree' }).click();
    await page.waitForURL(`${base}/oauth/callback?**`);
    assert.equal(await heading(), 'Connect your account?');
    // to look again changes nothing
    await page.reload();
    const found = await page.evaluate(() => ({
        wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        scripts: document.scripts.length,
        buttons: [...document.querySelectorAll('button')].map((button) => button.innerText),
    }));
    assert.deepEqual(found, { wide: 0, scripts: 0, buttons: ['Connect'] });
    await page.screenshot({ path: join(images, 'connect.png'), fullPage: true });

    // by keyboard alone
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.innerText), 'Connect');
    await page.keyboard.press('Enter');
    await page.getByText('is connected.').waitFor();
    assert.equal(await heading(), 'Connected');
    assert.equal(page.url(), `${base}/oauth/callback`, 'the code is not in the address any more');
    await page.screenshot({ path: join(images, 'connected.png'), fullPage: true });

    // back, and pressed once more
    await page.goBack();
    await page.getByRole('button', { name: 'Connect' }).click();
    await page.getByText('Nothing was done now.').waitFor();
    assert.equal(await heading(), 'This was done already');
    assert.deepEqual(wrong, []);
} finally {
    await browser.close();
}
