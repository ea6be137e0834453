// Opens the approval pages as a person does: on a phone, by keyboard alone, in the light and in the dark.
import assert from 'node:assert/strict';
import { base, focused, isInView, leave, look, open, pages, phone, press, reach, shows } from './phone.mjs';

// two questions at once: one is edited, one rejected
{
    const page = await phone();
    await open(page, pages.two);
    await shows(page, 'Your approvals are needed');
    await look(page, 'approval-pending');
    // all at once can be decided without a scroll
    assert.ok(await isInView(page, 'button[value="approve:all"]'), 'Approve all is not in view');
    await reach(page, 'summary');
    await page.keyboard.press('Enter');
    await reach(page, '#i0f1');
    await page.keyboard.press('ControlOrMeta+A');
    await page.keyboard.type('The build is green');
    // the Enter key in a field shows what was changed, and decides nothing
    await press(page);
    await shows(page, 'Nothing was decided yet: look at what you changed, then approve it.');
    assert.equal(await focused(page), 'c0', 'the focus is on what was changed');
    assert.ok(await isInView(page, '#c0 h3'), 'what was changed is not in view');
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
    // a screen that is too small for the page shows the fault all the same, and a link at the top leads to each
    assert.equal(await focused(page), 'i0f1', 'the focus is on the fault');
    assert.ok(await isInView(page, '#i0f1'), 'the fault is not in view');
    await page.focus('a[href="#i0code"]');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => location.hash === '#i0code');
    assert.ok(await isInView(page, '#i0code'), 'the link does not lead to the fault');
    await page.focus('#i0f1');
    const beside = await page.getAttribute('#i0f1', 'aria-describedby');
    assert.equal(await page.textContent(`#${beside.split(' ')[1]}`), 'the value is longer than 30 characters');
    await shows(page, 'has to be typed as it is shown');
    await look(page, 'approval-fault');
}

// a question for input is answered field by field, and what will not do is told beside its field
{
    const page = await phone();
    await open(page, pages.input);
    await look(page, 'approval-input');
    assert.ok(await isInView(page, 'button[value="answer:0"]'), 'the button is not in view');
    await reach(page, '#i0f3');
    await page.keyboard.type('This text is a good deal too long');
    await press(page);
    assert.equal(await focused(page), 'i0f3', 'the focus is on the fault');
    assert.ok(await isInView(page, '#i0f3'), 'the fault is not in view');
    await shows(page, 'the value is longer than 30 characters');
    await look(page, 'approval-input-fault');
    await page.keyboard.press('ControlOrMeta+A');
    await page.keyboard.type('The build is green');
    await reach(page, 'button[value="answer:0"]');
    await press(page);
    assert.ok(page.url().startsWith(`${base}/approvals/outcome/`), page.url());
    await look(page, 'approval-input-outcome');
}

// a server is named before its words, and answered by its own form
{
    const page = await phone();
    await open(page, pages.server);
    await shows(page, 'github asks you something');
    await shows(page, 'These are its words, not ours');
    await look(page, 'approval-server');
    await reach(page, '#i0f0');
    await page.keyboard.type('ann');
    await press(page);
    assert.equal(await focused(page), 'i0f0', 'the focus is on the fault');
    await shows(page, 'must be an e-mail address');
    await look(page, 'approval-server-fault');
    await page.keyboard.press('ControlOrMeta+A');
    await page.keyboard.type('ann@example.org');
    await reach(page, 'input[name="0.f2.1"]');
    await page.keyboard.press('Space');
    await reach(page, 'button[value="decline:0"]');
    await reach(page, 'button[value="cancel:0"]');
    await page.focus('button[value="answer:0"]');
    await press(page);
    assert.ok(page.url().startsWith(`${base}/approvals/outcome/`), page.url());
    await shows(page, 'The server is told, and the call goes on.');
    await look(page, 'approval-server-outcome');
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

await leave();
