// Runs the README's JavaScript in a page of the gateway, and prints what it logs: readme.mjs FILE URL CHROMIUM

import { readFile } from "node:fs/promises";
import { chromium } from "playwright-core";

const [file, url, executablePath] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
page.on("console", (message) => console.log(message.text()));
page.on("pageerror", (error) => console.log(error.stack));
await page.goto(`${url}healthz`);
await page.addScriptTag({ content: await readFile(file, "utf8") });
