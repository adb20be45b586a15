const VIEW_S = 10; // at speed 1, the time in view passes in so many seconds
const STEP_S = 0.6; // at speed 1 without motion, an event
const FONT = "12px system-ui, sans-serif";
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const element = (id) => document.getElementById(id);

let colours = new Map();

/** Return a colour of page.css by its name there. */
function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`));
  return colours.get(name);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  element("theme").textContent = theme === "dark" ? "Light" : "Dark";
  element("theme").ariaLabel = `${theme === "dark" ? "Light" : "Dark"} colours`;
  colours = new Map();
  changed("view");
}

let before = 0; // when the last frame of the play was drawn

function play(on) {
  page.playing = on;
  element("play").querySelector("span").textContent = on ? "Pause" : "Play";
  element("play").querySelector("path").setAttribute("d", on ? "M3 1h3v14H3zM10 1h3v14h-3z" : "M3 1v14l11-7z");
  element("now").ariaLive = on ? "off" : "polite"; // nobody can hear every event
  if (!on) return;
  if (page.passed >= page.times.length) goTo(page.start);
  before = performance.now();
  requestAnimationFrame(advance);
}

/** Let time pass, in proportion to what is in view; or one event after another where the user prefers no motion. */
function advance(now) {
  if (!page.playing) return;
  const [a, b] = page.view, speed = Number(element("speed").value), passed_s = Math.max(0, now - before) / 1000;
  if (calm.matches) {
    if (passed_s * speed >= STEP_S) {
      before = now;
      if (!step(1)) return play(false);
    }
  } else {
    before = now;
    goTo(page.t + (Math.min(passed_s, 0.1) * speed * (b - a)) / VIEW_S);
    if (page.t < a || page.t > b - 0.08 * (b - a)) look(page.t - 0.1 * (b - a), page.t + 0.9 * (b - a));
    if (page.t >= page.end) return play(false);
  }
  return requestAnimationFrame(advance);
}

function drawControls() {
  const distance = page.view[1] - page.view[0], [run, i] = current() ?? [];
  element("time").textContent = `${inWords(page.t, distance)}, event ${COUNT(told())} of ${COUNT(page.times.length)}`;
  const share = (page.t - page.start) / (page.end - page.start);
  element("scrub").value = String(Math.round(1e4 * share));
  element("scrub").setAttribute("aria-valuetext", inWords(page.t, distance));
  element("now").textContent = run ? sentence(run, i, distance) : "Before the first event.";
  for (const one of page.runs) {
    const mine = toldOf(one);
    const facts = mine >= 0 ? factsOf(one, mine, distance) : [];
    one.updates.forEach((own, rank) => {
      if (own.length) facts.push([`x at rank ${rank}`, `version ${one.versionAt(rank, passedOf(one))}`]);
    });
    const list = d3.select(one.section).select(".facts").selectAll("div").data(facts).join("div");
    list.selectAll("dt").data((fact) => [fact[0]]).join("dt").text((name) => name);
    list.selectAll("dd").data((fact) => [fact[1]]).join("dd").text((value) => value);
  }
}

const isFirst = (run, i) => run.stepOf[i] >= 0 && (run.message[i] >= 0 || run.stores.get(i)?.lost.length);
const sends = (run, i) => run.opOf(i) === "send";
const follow = (by) => {
  const select_ = element("follow"), n = select_.options.length;
  select_.selectedIndex = (select_.selectedIndex + by + n) % n;
  select_.dispatchEvent(new Event("change"));
};
const KEYS = {
  " ": () => play(!page.playing),
  ArrowRight: (event) => { play(false); step(1, event.shiftKey ? sends : undefined); },
  ArrowLeft: (event) => { play(false); step(-1, event.shiftKey ? sends : undefined); },
  ArrowDown: () => follow(1),
  ArrowUp: () => follow(-1),
  Home: () => goToEvent(page.walk[0]),
  End: () => goToEvent(page.times.length - 1),
  "+": () => zoom(2),
  "=": () => zoom(2),
  "-": () => zoom(0.5),
  0: () => look(page.start, page.end),
};

function onKey(event) {
  const own = event.target.closest("input, select, summary, button, .code, .scroll");
  const typing = own?.matches("input, select, .code, .scroll") || (own && [" ", "Enter"].includes(event.key));
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key](event);
}

function connect() {
  const actions = {
    first: KEYS.Home, last: KEYS.End, previous: () => { play(false); step(-1); }, next: () => { play(false); step(1); },
    play: () => play(!page.playing), in: () => zoom(2), out: () => zoom(0.5), fit: KEYS[0],
    theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  };
  for (const [id, action] of Object.entries(actions)) element(id).addEventListener("click", action);
  element("scrub").addEventListener("input", (event) => {
    goTo(page.start + (page.end - page.start) * (Number(event.target.value) / 1e4));
    showMoment();
  });
  element("follow").addEventListener("change", (event) => {
    page.follow = Number(event.target.value);
    changed("view");
  });
  document.addEventListener("keydown", onKey);
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
}

function build(run) {
  const section = element("run").content.cloneNode(true).firstElementChild;
  element("runs").append(section);
  run.section = section;
  section.querySelector("h2").textContent = `${run.facts.name}: ${run.facts.about}`;
  section.querySelector(".lanes").ariaLabel = `Timeline of ${run.facts.name}`;
  const note = document.createElement("small");
  if (run.facts.shift) {
    note.textContent = ` (its clock is moved by ${length(Math.abs(run.facts.shift))}, so that both begin together)`;
  }
  note.textContent += lostInWords(run);
  section.querySelector("h2").append(note);
  return section;
}

async function start() {
  const facts = JSON.parse(element("data").textContent);
  merge(await Promise.all(facts.runs.map(async (one, r) => new Run(r, one, await unpack(one), facts))));
  document.querySelector("h1").textContent = document.title;
  document.body.classList.toggle("two", page.runs.length > 1);
  setTheme(dark.matches ? "dark" : "light");
  const ranks = d3.max(page.runs, (run) => run.ranks);
  for (let rank = 0; rank < ranks; rank++) element("follow").append(new Option(`rank ${rank}`, String(rank)));
  const sections = page.runs.map(build); // all, before any is measured: a scroll bar may appear
  const lanes = page.runs.map((run, r) => new Lanes(run, sections[r].querySelector(".lanes")));
  page.runs.forEach((run, r) => {
    run.chunks = new Chunks(run, sections[r].querySelector(".chunks"));
    new Code(run, sections[r]);
  });
  drawers.moment.push(drawControls);
  new Messages(element("messages"));
  d3.select("#legend").selectAll("li").data(facts.phases).join("li").style("--colour", (phase) => `var(--${phase})`)
    .text((phase) => phase);
  d3.select("#legend").append("li").style("--colour", "var(--paper)").text(GAP);
  connect();
  new ResizeObserver(() => {
    for (const one of lanes) { // at once, for a canvas of another size is blank
      one.resize();
      one.drawEvents();
      one.drawMoment();
    }
    changed("view");
  }).observe(element("runs"));
  look(...facts.view);
  const walk = page.walk.filter((p) => page.times[p] >= facts.view[0]);
  goToEvent(walk.find((p) => isFirst(...at(p))) ?? walk[0] ?? 0);
  globalThis.page = Object.assign(page, { lanes, goTo, look, isFree }); // for a console, or who takes pictures
}

await start();
