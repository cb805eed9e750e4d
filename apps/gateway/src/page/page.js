// The page of the gateway: reads /stats once a second and is an ordinary client of /ws.

const SPAN = 120; // seconds in the chart, at most
const SHORTEST = 10; // at least
const GAP = 3500; // milliseconds without numbers that are a gap in a line
const MESSAGES = 200; // in the list
const ROWS = 200; // in the table of keys
const LINES = ["received", "delivered", "unmatched", "dropped"];

const $ = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const brief = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const rate = (x) => (x === 0 ? "0" : x < 10 ? x.toFixed(1) : brief.format(x));
const setText = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };

// Numbers ------------------------------------------------------------------------------------------

let last = null; // the previous stats
let shown = null; // when the numbers were last true
const history = []; // one { at, received, … } a second
const trends = new Map(); // key → rates, newest last

async function refresh() {
  try {
    const answer = await fetch("stats", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(`/stats answers ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    last = null;
    document.body.classList.add("stale");
    if (shown) setText("age", `${Math.round((Date.now() - shown) / 1000)} s ago:`);
    $("state").className = "down";
    setText("state", "gateway unreachable");
    alarm(`The gateway does not answer (${error.message}). Retrying.`);
  }
  // Two answers make a rate. They are at least half a second apart, so soon after the page was opened.
  setTimeout(refresh, history.length ? 1000 : 250);
}

function alarm(text) {
  $("alarm").hidden = !text;
  setText("alarm", text || "");
}

/** Isolates a key, which any client can choose: right-to-left text must not reorder the text around it. */
function bdi(text) {
  const made = document.createElement("bdi");
  made.textContent = text;
  return made;
}
// A text that comes from outside, in a sentence. It cannot change the direction of the rest.
const isolated = (text) => `\u2068${text.replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd")}\u2069`;

function show(stats) {
  if (stats.uptime_ms === last?.stats.uptime_ms) return; // the same answer as last time
  const { totals, source } = stats;
  shown = Date.now();
  document.body.classList.remove("stale");
  const dropped = Object.values(totals.discarded).reduce((sum, n) => sum + n, 0);
  const counts = { received: totals.received, delivered: totals.delivered, unmatched: totals.unmatched, dropped };

  const isUp = source.state === "up" && !stats.draining;
  $("state").className = isUp ? "up" : "down";
  const name = source.kind === "amqp" ? "RabbitMQ" : "embedded source";
  setText("state", stats.draining ? "stopping" : isUp ? `running, ${name}` : "broker lost");
  setText("node", stats.node === "main" ? "" : stats.node);
  alarm(stats.draining ? "The gateway is stopping." : source.state === "up" ? ""
    : `The broker is away${source.error ? `: ${source.error}` : ""}. Clients stay connected and subscribed; the gateway reconnects by itself.`);

  // A restarted gateway counts from 0 again.
  const seconds = last ? (stats.uptime_ms - last.stats.uptime_ms) / 1000 : 0;
  const known = seconds > 0;
  const now = { at: Date.now() };
  for (const line of LINES) {
    now[line] = known ? Math.max(0, counts[line] - last.counts[line]) / seconds : 0;
    setText(`now-${line}`, known ? rate(now[line]) : "–");
    setText(`all-${line}`, `${whole.format(counts[line])} in all`);
  }
  // So that the tiles add up: received + copies = delivered + unmatched + dropped + queued.
  setText("all-received", `${whole.format(totals.received)} in all, and ${whole.format(totals.copies)} copies`);
  setText("now-queued", whole.format(totals.queued));
  setText("terms", `buffer ${whole.format(stats.buffer)}, ${stats.overflow}`);
  setText("now-connections", whole.format(stats.connections));
  setText("all-subscriptions", `${whole.format(stats.subscriptions)} subscription${stats.subscriptions === 1 ? "" : "s"}`);
  for (const [reason, count] of Object.entries(totals.discarded)) setText(`drop-${reason}`, whole.format(count));
  showLosers(stats.clients);
  const { blocked, history: kept } = stats;
  $("kept").hidden = !kept;
  $("keys").classList.toggle("no-history", !kept);
  if (kept) setText("kept-what", `the last ${whole.format(kept.most)} messages of each of ${whole.format(kept.keys)} keys, ${brief.format(kept.bytes)} bytes`);
  $("blocked").className = blocked ? "yes" : "";
  setText("blocked", blocked
    ? `${blocked.client ?? "all clients"}${blocked.key === null ? "" : `, for ${isolated(blocked.key)}`}, for ${(blocked.for_ms / 1000).toFixed(1)} s` : "not waiting");

  if (known) {
    history.push(now);
    while (history[0].at < now.at - SPAN * 1000) history.shift();
    draw();
  }
  showKeys(stats, known ? seconds : 0);
  last = { stats, counts, keys: new Map(stats.keys.map((key) => [key.key, key])) };
}

/** Lists the clients that lost most. */
function showLosers(clients) {
  $("losers").hidden = clients.length === 0;
  $("losers").tBodies[0].replaceChildren(...clients.map(({ client, rate, overflow }) => {
    const tr = document.createElement("tr");
    for (const text of [client, whole.format(rate), whole.format(overflow)]) {
      tr.appendChild(document.createElement("td")).textContent = text;
    }
    return tr;
  }));
}

// The table of keys --------------------------------------------------------------------------------

const rows = new Map(); // key → the cells of its row

function showKeys(stats, seconds) {
  const rates = new Map();
  for (const key of stats.keys) {
    const before = last?.keys.get(key.key)?.received ?? 0;
    const now = seconds > 0 ? Math.max(0, key.received - before) / seconds : 0;
    rates.set(key.key, now);
    const trend = trends.get(key.key) ?? [];
    trend.push(now);
    if (trend.length > SPAN) trend.shift();
    trends.set(key.key, trend);
  }
  const level = (key) => trends.get(key).slice(-30).reduce((sum, x) => sum + x, 0);
  const levels = new Map(stats.keys.map(({ key }) => [key, level(key)]));
  const sorted = [...stats.keys].sort((a, b) =>
    levels.get(b.key) - levels.get(a.key) || b.subscribers - a.subscribers || (a.key < b.key ? -1 : 1));
  const shown = sorted.slice(0, ROWS);
  const names = new Set(shown.map((key) => key.key));
  for (const [key, row] of rows) if (!names.has(key)) { row.tr.remove(); rows.delete(key); }
  for (const key of trends.keys()) if (!rates.has(key)) trends.delete(key);

  const body = $("keys").tBodies[0];
  // A button that moves loses the focus, and the pointer: new rows go to the end while the table is in use.
  const stays = body.matches(":hover, :focus-within");
  shown.forEach((key, place) => {
    const row = rows.get(key.key) ?? newRow(key.key);
    rows.set(key.key, row);
    row.set(rates.get(key.key), key);
    if (stays && row.tr.isConnected) return;
    const before = stays ? null : body.children[place] ?? null;
    if (before !== row.tr) body.insertBefore(row.tr, before);
  });
  $("no-keys").hidden = shown.length > 0;
  $("keys").hidden = shown.length === 0;
  const more = stats.keys.length - shown.length;
  const { other } = stats;
  const all = stats.keys.length + other.keys;
  setText("keys-count", [all ? whole.format(all) : "", more + other.keys > 0 ? `(${whole.format(more + other.keys)} not shown)` : "",
    other.received > 0 ? `and ${whole.format(other.received)} messages for others` : ""].join(" ").trim());
}

function newRow(key) {
  const tr = document.createElement("tr");
  const cells = Array.from({ length: 9 }, () => tr.appendChild(document.createElement("td")));
  cells[0].append(bdi(key));
  cells[2].className = "trend";
  const svg = cells[2].appendChild(element("svg", { viewBox: "0 0 90 22", "aria-hidden": "true" }));
  const path = svg.appendChild(element("path", {}));
  const button = cells[8].appendChild(document.createElement("button"));
  button.type = "button";
  button.onclick = () => (subscriptions.has(key) ? unsubscribe(key) : subscribe(key));
  const set = (now, counts) => {
    const texts = [, rate(now), , whole.format(counts.subscribers), whole.format(counts.delivered), whole.format(counts.dropped),
      whole.format(counts.at ?? 0), whole.format(counts.kept ?? 0)];
    texts.forEach((text, i) => { if (cells[i].textContent !== text) cells[i].textContent = text; });
    cells[5].className = counts.dropped > 0 ? "some" : "";
    const trend = trends.get(key);
    const top = Math.max(...trend, 1);
    path.setAttribute("d", line(trend.map((y, i) => [90 - (trend.length - 1 - i) * (90 / (SPAN - 1)), 21 - (y / top) * 20])));
    const label = subscriptions.has(key) ? "stop" : "watch";
    if (button.textContent !== label) button.textContent = label;
    button.setAttribute("aria-label", `${label} ${key}`);
  };
  return { tr, set };
}

// The chart ----------------------------------------------------------------------------------------

function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

const line = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** A round number not below x. */
function ceiling(x) {
  const power = 10 ** Math.floor(Math.log10(Math.max(x, 1)));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((round) => round >= x);
}

let pointed = null; // position of the pointer, as a fraction of the width
const legend = new Map(LINES.map((name) => {
  const item = $("legend").appendChild(document.createElement("li"));
  item.className = name;
  item.append(document.createElement("i"), `${name} `);
  return [name, item.appendChild(document.createElement("span"))];
}));

function draw() {
  const svg = $("chart");
  const { width, height } = svg.getBoundingClientRect();
  if (!width) return;
  if (history.length < 2) { // a line needs two points
    const label = element("text", { x: width / 2, y: height / 2, "text-anchor": "middle" });
    label.textContent = "collecting";
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(label);
    return;
  }
  const [left, bottom, over] = [44, 20, 8];
  const end = history.at(-1).at;
  const span = Math.min(SPAN * 1000, Math.max(SHORTEST * 1000, end - history[0].at));
  const x = (at) => left + (width - left - 4) * (1 - (end - at) / span);
  const most = ceiling(Math.max(...history.flatMap((point) => LINES.map((name) => point[name]))));
  const y = (value) => over + (height - over - bottom) * (1 - value / most);
  const drawn = [];
  for (const share of [0, 0.5, 1]) {
    drawn.push(element("line", { x1: left, x2: width - 4, y1: y(share * most), y2: y(share * most) }));
    const label = element("text", { x: left - 6, y: y(share * most) + 4, "text-anchor": "end" });
    label.textContent = brief.format(share * most);
    drawn.push(label);
  }
  for (const share of [1, 0.75, 0.5, 0.25, 0]) {
    const label = element("text", { x: x(end - share * span), y: height - 4,
      "text-anchor": share === 0 ? "end" : share === 1 ? "start" : "middle" });
    label.textContent = share ? `${Math.round((share * span) / 1000)} s ago` : "now";
    if (width > 500 || share % 0.5 === 0) drawn.push(label);
  }
  const stretches = [[]];
  history.forEach((point, i) => {
    if (i && point.at - history[i - 1].at > GAP) stretches.push([]);
    stretches.at(-1).push(point);
  });
  for (const name of LINES) {
    drawn.push(element("path", { class: name, d: stretches.map((points) => line(points.map((point) => [x(point.at), y(point[name])]))).join("") }));
  }
  let at = history.at(-1);
  if (pointed !== null) {
    const time = end - (1 - (pointed * width - left) / (width - left - 4)) * span;
    at = history.reduce((best, point) => (Math.abs(point.at - time) < Math.abs(best.at - time) ? point : best));
    drawn.push(element("line", { class: "cursor", x1: x(at.at), x2: x(at.at), y1: over, y2: height - bottom }));
  }
  for (const name of LINES) legend.get(name).textContent = rate(at[name]);
  setText("when", at === history.at(-1) ? "now" : `${Math.round((end - at.at) / 1000)} s ago`);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...drawn);
}

$("chart").addEventListener("pointermove", (event) => {
  const box = $("chart").getBoundingClientRect();
  pointed = (event.clientX - box.left) / box.width;
  draw();
});
$("chart").addEventListener("pointerleave", () => { pointed = null; draw(); });
new ResizeObserver(draw).observe($("chart"));

// Subscriptions ------------------------------------------------------------------------------------

const subscriptions = new Map(); // key → { rate, chip, last }; last: the position to resume from
let socket = null;
let pause = 250;
let isCut = false; // the user was told that the connection is lost

function connect() {
  socket = new WebSocket(new URL(`ws${location.search}`, location.href.replace(/^http/, "ws")));
  socket.onopen = () => {
    pause = 250;
    isCut = false;
    for (const [key, { rate, last }] of subscriptions) send({ type: "subscribe", key, ...(rate && { rate }), ...last });
  };
  socket.onmessage = (event) => receive(JSON.parse(event.data));
  socket.onclose = (event) => {
    socket = null;
    for (const { chip } of subscriptions.values()) chip.className = "waits";
    if (!subscriptions.size) return;
    // A browser does not tell a page why a connection was refused.
    const why = event.code === 1006 ? "connection lost or refused" : `closed by the gateway: ${event.reason || event.code}`;
    if (!isCut) notice(`${why}; reconnecting`);
    isCut = true;
    setTimeout(() => { if (!socket && subscriptions.size) connect(); }, pause);
    pause = Math.min(pause * 2, 10_000);
  };
}

function send(what) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(what));
}

function subscribe(key, rate) {
  if (subscriptions.has(key)) return wrong(`already subscribed to ${isolated(key)}`);
  const chip = $("subscriptions").appendChild(document.createElement("li"));
  chip.className = "waits";
  chip.append(bdi(key), document.createElement("span"));
  const button = chip.appendChild(document.createElement("button"));
  button.type = "button";
  button.textContent = "×";
  button.setAttribute("aria-label", `unsubscribe from ${key}`);
  button.onclick = () => unsubscribe(key);
  subscriptions.set(key, { rate, chip, last: {} });
  remember();
  if (socket) send({ type: "subscribe", key, ...(rate && { rate }) });
  else connect();
}

function remove(key) {
  subscriptions.get(key)?.chip.remove();
  subscriptions.delete(key);
  remember();
}

/** Keeps the subscriptions over a reload of this page. */
function remember() {
  sessionStorage.setItem("subscriptions", JSON.stringify([...subscriptions].map(([key, { rate }]) => [key, rate])));
}

/** Shows an error at the field, until the next input. */
function wrong(text) {
  $("subscribe-error").hidden = !text;
  setText("subscribe-error", text);
}
$("subscribe").oninput = () => wrong("");

function unsubscribe(key) {
  remove(key);
  send({ type: "unsubscribe", key });
}

function receive(message) {
  const { last } = subscriptions.get(message.key) ?? {};
  if (last && message.epoch) last.epoch = message.epoch;
  if (last && message.at !== undefined) last.since = message.at;
  if (message.type === "message") {
    const text = message.body ?? (message.base64 === undefined ? JSON.stringify(message.json) : `(base64) ${message.base64}`);
    add(message.key, message.at, text, message.redelivered ? " (again)" : "");
  } else if (message.type === "gap") {
    notice(`${isolated(message.key)}: messages may be missing`);
  } else if (message.type === "history") {
    if (message.gap) notice(`${isolated(message.key)}: some missed messages are no longer kept`);
  } else if (message.error === "no_history" && last) { // the gateway was restarted without --history
    delete last.since;
    delete last.epoch;
    const { rate } = subscriptions.get(message.key);
    send({ type: "subscribe", key: message.key, ...(rate && { rate }) });
  } else if (message.type === "subscribed") {
    const held = subscriptions.get(message.key);
    if (held) {
      held.chip.className = "";
      held.chip.children[1].textContent = message.rate ? `, at most ${message.rate}/s` : "";
    }
  } else if (message.type === "lost") {
    const why = message.reason === "rate" ? "over the rate limit" : "this page was too slow";
    notice(`${isolated(message.key)}: ${whole.format(message.count)} lost, ${why}`);
  } else if (message.type === "unsubscribed" && message.reason !== "requested") {
    remove(message.key);
    const why = message.reason === "forbidden" ? "the broker no longer allows it to read the key" : "this page was too slow";
    notice(`${isolated(message.key)}: ended by the gateway: ${why}`);
  } else if (message.type === "error" && message.error !== "not_subscribed") {
    if (message.key !== undefined && message.error !== "already_subscribed") remove(message.key);
    wrong(message.key ? `${isolated(message.key)}: ${message.message}` : message.message);
  }
}

// New messages are drawn once a frame, however many arrive.
let fresh = [];
function add(key, at, text, mark) {
  const item = document.createElement("li");
  const name = document.createElement("b");
  name.append(bdi(key));
  const place = document.createElement("small");
  if (at !== undefined) place.textContent = `#${at} `;
  item.append(name, place, bdi(text), mark);
  put(item);
}
function notice(text) {
  const item = document.createElement("li");
  item.className = "notice";
  item.textContent = text;
  put(item);
}
function put(item) {
  fresh.push(item);
  if (fresh.length === 1) (document.hidden ? setTimeout : requestAnimationFrame)(place, 0);
  if (fresh.length > MESSAGES) fresh.splice(1, 1); // keep the first: it has requested the frame
}
function place() {
  const list = $("messages");
  $("no-messages").hidden = true;
  list.prepend(...fresh.reverse()); // newest first
  fresh = [];
  while (list.childElementCount > MESSAGES) list.lastChild.remove();
}

$("subscribe").onsubmit = (event) => {
  event.preventDefault();
  wrong("");
  subscribe($("subscribe-key").value, Number($("subscribe-rate").value) || undefined);
  $("subscribe-key").value = "";
};

$("publish").onsubmit = async (event) => {
  event.preventDefault();
  const token = $("publish-token").value;
  try {
    const answer = await fetch(`publish/${encodeURIComponent($("publish-key").value)}`, {
      method: "POST",
      body: $("publish-body").value,
      headers: token ? { Authorization: `Bearer ${token}` } : {},
    });
    const result = await answer.json();
    setText("published", answer.ok ? `taken: ${result.bytes} bytes for ${isolated(result.key)}` : result.message);
  } catch (error) {
    setText("published", `not sent: ${error.message}`);
  }
};

for (const [key, rate] of JSON.parse(sessionStorage.getItem("subscriptions") ?? "[]")) subscribe(key, rate ?? undefined);
refresh();
