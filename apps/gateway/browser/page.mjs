// Tests the gateway's page in a browser: page.mjs empty|busy|lost|restarted URL FOLDER CHROMIUM
// Prints faults, and prints @halfway when the script is to stop or start the broker.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const [stage, url, folder, executablePath] = process.argv.slice(2);
const TIMEOUT = 180_000; // milliseconds; as the driver waits, for a machine with much other work
const LOOKS = ["light", "dark"].flatMap((colorScheme) => [
  { name: `wide-${colorScheme}`, colorScheme, viewport: { width: 1280, height: 900 } },
  { name: `narrow-${colorScheme}`, colorScheme, viewport: { width: 360, height: 740 } },
]);

/** Records console errors, exceptions, requests to other hosts and error responses. */
function listen(page, complaints, isAway) {
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !isAway()) complaints.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => complaints.push(`exception: ${error.stack}`));
  page.on("request", (request) => {
    const { protocol, host } = new URL(request.url());
    if (protocol !== "data:" && host !== new URL(url).host) complaints.push(`request to another host: ${request.url()}`);
  });
  page.on("response", (response) => {
    if (response.status() >= 400) complaints.push(`${response.status()}: ${response.url()}`);
  });
}

/** Returns elements that scroll horizontally or extend beyond the right edge of the page. */
const overflowing = () => {
  const width = document.documentElement.clientWidth;
  const found = [];
  if (document.scrollingElement.scrollWidth > width) found.push(`the page is ${document.scrollingElement.scrollWidth} wide`);
  for (const element of document.body.querySelectorAll("*")) {
    if (["auto", "scroll"].includes(getComputedStyle(element).overflowX) && element.scrollWidth > element.clientWidth + 1) {
      const { scrollWidth, clientWidth, tagName, id, className } = element;
      found.push(`${tagName.toLowerCase()}#${id}.${className} is ${scrollWidth} wide, but only ${clientWidth} are visible`);
    }
    let around = element.parentElement;
    while (around && getComputedStyle(around).overflowX === "visible") around = around.parentElement;
    const box = element.getBoundingClientRect();
    if ((!around || around === document.documentElement) && box.width > 0 && box.right > width + 1) {
      found.push(`${element.tagName.toLowerCase()}#${element.id} ends at ${Math.round(box.right)}`);
    }
  }
  return found;
};

/** Returns placeholders that do not fit into their inputs. */
const cutOff = () => {
  const pen = document.createElement("canvas").getContext("2d");
  const found = [];
  for (const input of document.querySelectorAll("input[placeholder]")) {
    const style = getComputedStyle(input);
    pen.font = style.font;
    const arrows = input.type === "number" ? 18 : 0; // the spin buttons take space even if they are hidden
    const room = input.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - arrows;
    const { width } = pen.measureText(input.placeholder);
    if (width > room) found.push(`"${input.placeholder}" is ${Math.round(width)} wide, in an input of ${Math.round(room)}`);
  }
  return found;
};

/** Returns text with too little contrast: WCAG requires a ratio of 4.5, or 3 for large text. */
const faint = () => {
  const parse = (color) => {
    const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const light = ({ rgb }) => {
    const [r, g, b] = rgb.map((value) => value / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.a > 0) return color;
    }
    return { rgb: [255, 255, 255] };
  };
  const found = new Set();
  for (const element of document.body.querySelectorAll("*")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!hasText || !element.checkVisibility() || element.closest("svg")) continue;
    const style = getComputedStyle(element);
    const [bright, dim] = [light(parse(style.color)), light(ground(element))].sort((a, b) => b - a);
    const ratio = (bright + 0.05) / (dim + 0.05);
    const size = parseFloat(style.fontSize);
    if (ratio < (size >= 24 || (size >= 18.6 && style.fontWeight >= 700) ? 3 : 4.5)) {
      found.add(`"${element.textContent.trim().slice(0, 30)}" has a contrast of ${ratio.toFixed(1)}`);
    }
  }
  return [...found];
};

/** Moves through the page with the Tab key. Each focused element must be marked and visible. */
async function tabThrough(page) {
  // Tab starts at the last click.
  await page.evaluate(() => window.scrollTo(0, 0));
  await page.mouse.click(1, 1);
  const seen = [];
  for (let step = 0; step < 60; step += 1) {
    await page.keyboard.press("Tab");
    const focus = await page.evaluate(() => {
      const element = document.activeElement;
      if (!element || element === document.body) return null;
      if (element.dataset.tabbed) return { again: true };
      element.dataset.tabbed = "yes";
      const style = getComputedStyle(element);
      const isMarked = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
      const box = element.getBoundingClientRect();
      const isSeen = box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
      const name = element.getAttribute("aria-label") || element.textContent.trim() || element.labels?.[0]?.textContent;
      return { what: `${element.tagName.toLowerCase()} ${element.id || name}`, isMarked, isSeen, isNamed: Boolean(name) };
    });
    if (!focus || focus.again) break;
    assert(focus.isMarked, `the focus on ${focus.what} does not show`);
    assert(focus.isSeen, `the focus on ${focus.what} is out of sight`);
    assert(focus.isNamed, `${focus.what} has no accessible name`);
    seen.push(focus.what);
  }
  for (const wanted of ["input subscribe-key", "input publish-key", "button subscribe", "button publish"]) {
    assert(seen.includes(wanted), `the keyboard does not reach "${wanted}", only: ${seen.join(", ")}`);
  }
  return seen.length;
}

/** Whether the row of one key is above the row of another. */
const isAbove = ([above, below]) => {
  const keys = [...document.querySelectorAll("#keys td:first-child bdi")].map((name) => name.textContent);
  return keys.indexOf(above) < keys.indexOf(below);
};

/** A row keeps its place while its button has the focus, though another key gets more messages. */
async function keepsItsPlaceInFocus(page, key, other) {
  const submit = (form, fields) => page.evaluate(([id, values]) => {
    for (const [field, value] of Object.entries(values)) document.getElementById(field).value = value;
    document.getElementById(id).requestSubmit(); // does not move the focus
  }, [form, fields]);
  await page.getByRole("button", { name: `stop ${key}`, exact: true }).focus();
  await submit("subscribe", { "subscribe-key": other });
  await subscribed(page, other);
  const MESSAGES = 5;
  for (let n = 0; n < MESSAGES; n += 1) await submit("publish", { "publish-key": other, "publish-body": `${n}` });
  await until(page, "the other row counts its messages", ([name, count]) =>
    [...document.querySelectorAll("#keys tbody tr")].some((row) => row.querySelector("bdi").textContent === name
      && row.querySelector("td:nth-child(5)").textContent === `${count}`), [other, MESSAGES]);
  assert(await page.evaluate(isAbove, [key, other]), "a row keeps its place while its button has the focus");
  const focused = await page.evaluate(() => document.activeElement.getAttribute("aria-label"));
  assert.equal(focused, `stop ${key}`, "the button keeps the focus");
  await page.evaluate(() => document.activeElement.blur());
  await until(page, "the rows are in order again", isAbove, [other, key]);
}

const text = (page, id) => page.locator(`#${id}`).innerText();

/** Waits until a function in the page is true. */
async function until(page, what, check, argument) {
  await page.waitForFunction(check, argument, { timeout: TIMEOUT }).catch(() => { throw new Error(`never: ${what}`); });
}

/** Waits until the page has subscribed to a key. */
const subscribed = (page, key) =>
  until(page, `subscribed to ${key}`, (name) => [...document.querySelectorAll("#subscriptions li")]
    .some((chip) => chip.className !== "waits" && chip.textContent.includes(name)), key);

// Buttons are pressed by key: the page grows while it is used, and on a busy machine a button could move between the
// moment when the driver looks where it is and that of the click.
const STAGES = {
  async empty(page, look) {
    await until(page, "the page shows that the gateway is running", () => document.getElementById("state").className === "up");
    assert(await page.locator("#no-keys").isVisible(), "a hint is shown without keys");
    assert(await page.locator("#alarm").isHidden(), "no alarm");
    assert(await page.locator("#kept").isHidden(), "nothing is kept");
    assert.match(await text(page, "what"), /^What this gateway receives and delivers/);
    await until(page, "the chart starts with what there is", () =>
      /^1\d s ago$/.test([...document.querySelectorAll("#chart text")][3]?.textContent));
    await page.screenshot({ path: `${folder}/empty-${look.name}.png`, fullPage: true });

    // Subscribes, publishes and receives by keyboard only.
    const key = `<i>größe</i> "${look.name}"/%2F`;
    const body = `<img src="nowhere" onerror="document.title='oops'"> & ${look.name}`;
    await page.locator("#subscribe-key").focus();
    await page.keyboard.type(key);
    await page.keyboard.press("Enter");
    await subscribed(page, key);
    // An error stays at the field until the next input.
    for (const [wrong, why] of [["demo.*", "wildcard"], [key, "already subscribed"]]) {
      await page.locator("#subscribe-key").fill(wrong);
      await page.keyboard.press("Enter");
      await until(page, `an error for ${wrong}`, (what) => document.getElementById("subscribe-error").innerText.includes(what), why);
      await page.waitForTimeout(700);
      assert(await page.locator("#subscribe-error").isVisible(), "the error stays");
      await page.locator("#subscribe-key").fill("x");
      assert(await page.locator("#subscribe-error").isHidden(), "until the next input");
      await page.locator("#subscribe-key").fill("");
    }
    await page.locator("#publish-key").focus();
    await page.keyboard.type(key);
    await page.keyboard.press("Tab");
    await page.keyboard.type(body);
    await page.keyboard.press("Enter");
    await until(page, "the message arrives unchanged", (wanted) => [...document.querySelectorAll("#messages li")]
      .some((item) => item.textContent.includes(wanted)), body);
    assert.equal(await page.title(), "gateway", "a message is shown as text and not executed");
    assert.equal(await page.locator("#messages li", { hasText: look.name }).count(), 1, "it arrives once");
    await until(page, "the key is in the table", (wanted) => [...document.querySelectorAll("#keys td:first-child")]
      .some((cell) => cell.querySelector("bdi")?.textContent === wanted), key);
    await keepsItsPlaceInFocus(page, key, `${look.name} 2`);
    await page.reload();
    for (const again of [key, `${look.name} 2`]) await subscribed(page, again);
  },

  async busy(page, look) {
    await until(page, "eight keys are shown", () => document.querySelectorAll("#keys tbody tr").length === 8);
    await page.locator("#subscribe-key").fill("demo.tea");
    await page.locator("#subscribe-key").press("Enter");
    await subscribed(page, "demo.tea");
    await page.getByRole("button", { name: "watch demo.coffee", exact: true }).press("Enter");
    await subscribed(page, "demo.coffee");
    const list = "#messages li";
    await until(page, "messages arrive", () => document.querySelectorAll("#messages li").length >= 50);
    // On a busy machine, the first key has filled the list before the second one is subscribed to.
    for (const key of ["demo.tea", "demo.coffee"]) {
      await until(page, `messages of ${key} arrive`, (wanted) => [...document.querySelectorAll("#messages li")]
        .some((item) => item.textContent.includes(wanted)), key);
    }
    // Messages have positions, and the page shows what is kept.
    assert.match(await page.locator(list).first().innerText(), /^demo\.\w+\s*#\d+ /);
    await until(page, "positions and what is kept", () => {
      const [at, kept] = [7, 8].map((n) => document.querySelector(`#keys tbody td:nth-child(${n})`).textContent);
      return Number(at.replace(",", "")) > 20 && kept === "20";
    });
    assert.match(await text(page, "kept-what"), /^the last 20 messages of each of 8 keys, [\d.]+K bytes$/);
    const before = await text(page, "all-delivered");
    await until(page, "the numbers grow", (old) => document.getElementById("all-delivered").innerText !== old, before);
    await until(page, "lines are drawn", () => [...document.querySelectorAll("#chart path")]
      .some((path) => (path.getAttribute("d").match(/L/g) ?? []).length >= 6));
    // The rate is 200, but varies from second to second on a busy machine.
    await until(page, "about 200 messages a second", () => {
      const shown = Number(document.getElementById("now-received").innerText);
      return shown > 150 && shown < 250;
    });

    // The demo has a client over its rate and one that stalls, and what they lose is listed.
    await until(page, "what two slow clients lose", () => [2, 3].every((column) =>
      [...document.querySelectorAll(`#losers tbody td:nth-child(${column})`)].some((cell) => cell.textContent !== "0")));
    assert.match(await text(page, "all-received"), /^[\d,]+ in all, and [\d,]+ copies$/);

    // Unsubscribed from both keys: no more messages arrive.
    await page.screenshot({ path: `${folder}/busy-${look.name}.png`, fullPage: true });
    await page.getByRole("button", { name: "unsubscribe from demo.tea", exact: true }).press("Enter");
    await page.getByRole("button", { name: "unsubscribe from demo.coffee", exact: true }).press("Enter");
    await until(page, "it stops when unsubscribed", () => new Promise((resolve) => {
      const newest = document.querySelector("#messages li");
      setTimeout(() => resolve(document.querySelector("#messages li") === newest), 1_000);
    }));
  },

  /** The gateway is killed and restarted with and without history: the page resumes, and reports missed messages. */
  async restarted(page, look, meeting) {
    const key = "tea";
    await page.locator("#subscribe-key").fill(key);
    await page.locator("#subscribe-key").press("Enter");
    await subscribed(page, key);
    const parts = () => page.locator("#chart path").first().evaluate((path) => (path.getAttribute("d").match(/M/g) ?? []).length);
    for (const [what, gap] of [["killed, and started with --history", 1], ["the same without", 1]]) {
      const cuts = await page.locator("#messages li", { hasText: "connection lost" }).count();
      await until(page, "a line", () => /L[^M]*$/.test(document.querySelector("#chart path")?.getAttribute("d")));
      const before = await parts();
      const stale = until(page, "old numbers are grey, with their age", () => document.body.classList.contains("stale")
        && /^\d+ s ago:$/.test(document.getElementById("age").innerText));
      await meeting(what);
      await stale;
      await until(page, what, ([name, before]) => {
        const notices = [...document.querySelectorAll("#messages li")].filter((it) => it.textContent.includes("connection lost"));
        const chip = [...document.querySelectorAll("#subscriptions li")].find((it) => it.textContent.includes(name));
        return notices.length > before && chip.className !== "waits";
      }, [key, cuts]);
      assert.equal(await page.locator("#messages li", { hasText: "connection lost" }).count(), cuts + 1, "it is said once");
      await until(page, "a gap in the chart", (count) =>
        (document.querySelector("#chart path").getAttribute("d").match(/M/g) ?? []).length > count, before);
      assert(await page.locator("#age").isHidden(), "the numbers are new");
      const notices = await page.locator("#messages li", { hasText: "no longer kept" }).count();
      assert.equal(notices, gap, `${what}: ${notices} gaps`);
    }
  },

  async lost(page, look, meeting) {
    await until(page, "the page shows that the broker is up", () => document.getElementById("state").className === "up");
    await page.locator("#subscribe-key").fill("demo.tea");
    await page.locator("#subscribe-key").press("Enter");
    await subscribed(page, "demo.tea");
    await meeting("the broker goes");
    await until(page, "the page shows that the broker is lost", () => !document.getElementById("alarm").hidden
      && /broker/i.test(document.getElementById("alarm").textContent)
      && document.getElementById("state").className === "down");
    // A subscription that is made now is confirmed later.
    await page.locator("#subscribe-key").fill("demo.coffee");
    await page.locator("#subscribe-key").press("Enter");
    await page.screenshot({ path: `${folder}/lost-${look.name}.png`, fullPage: true });
    await meeting("the broker comes back");
    await until(page, "the page shows that the broker is up again", () => document.getElementById("alarm").hidden
      && document.getElementById("state").className === "up");
    await subscribed(page, "demo.tea");
    await subscribed(page, "demo.coffee");
  },
};

/** A barrier for all pages; the last page to arrive notifies the script. */
function meetings(count) {
  const waiting = new Map();
  return (name) => new Promise((resolve) => {
    const here = [...(waiting.get(name) ?? []), resolve];
    waiting.set(name, here);
    if (here.length === count) {
      console.log("@halfway");
      here.forEach((go) => go());
    }
  });
}

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
let failures = 0;
const grounds = new Map();
const meeting = meetings(LOOKS.length);
await Promise.all(LOOKS.map(async (look) => {
  const complaints = [];
  try {
    const context = await browser.newContext({ viewport: look.viewport, colorScheme: look.colorScheme });
    const page = await context.newPage();
    page.setDefaultTimeout(TIMEOUT);
    listen(page, complaints, () => stage === "restarted"); // the browser logs refused connections
    await page.goto(url);
    await STAGES[stage](page, look, meeting);
    grounds.set(look.name, await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
    for (const check of [overflowing, cutOff, faint]) complaints.push(...(await page.evaluate(check)));
    const stops = await tabThrough(page);
    await page.screenshot({ path: `${folder}/${stage}-after-${look.name}.png`, fullPage: true });
    if (complaints.length === 0) console.log(`  ${stage}, ${look.name}: ok (${stops} keyboard stops)`);
    await context.close();
  } catch (error) {
    complaints.push(error.message);
  }
  for (const complaint of complaints.slice(0, 8)) console.log(`  FAULT: ${stage}, ${look.name}: ${complaint}`);
  failures += complaints.length;
  if (complaints.length > 0 && ["lost", "restarted"].includes(stage)) process.exit(1); // the other pages would wait at the barrier
}));
await browser.close();
if (grounds.size === LOOKS.length && grounds.get("wide-light") === grounds.get("wide-dark")) {
  console.log(`  FAULT: ${stage}: light and dark are the same`);
  failures += 1;
}
process.exit(failures > 0 ? 1 : 0);
