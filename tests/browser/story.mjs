// Follows the link of a real mail: the first call is changed and approved, the second one is rejected.
import assert from 'node:assert/strict';
import { base, leave, open, pages, phone, press, reach, shows } from './phone.mjs';

const page = await phone();
await open(page, pages.link);
await shows(page, 'Your approvals are needed');
await reach(page, 'summary');
await page.keyboard.press('Enter');
await reach(page, pages.field);
await page.keyboard.press('ControlOrMeta+A');
await page.keyboard.type(pages.typed);
await reach(page, 'button[value="approve:0"]');
await press(page);
await shows(page, 'Nothing was decided yet: look at what you changed, then approve it.');
await reach(page, 'button[value="approve:0"]');
await press(page);
await shows(page, 'Approved with changes');
await reach(page, 'button[value="cancel:1"]');
await press(page);
assert.ok(page.url().startsWith(`${base}/approvals/outcome/`), page.url());
await leave();
