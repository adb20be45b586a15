const COUNT = d3.format(",");

/** Return a time in words, while so many seconds are in view; with digits for what is so many seconds apart.
 * The unit is that of the whole view, and not much smaller than the times there. */
function inWords(seconds, inView, apart = inView / 1000) {
  const large = Math.max(inView, page.view[1] / 10);
  const [unit, scale] = large >= 2 ? ["s", 1] : large >= 2e-3 ? ["ms", 1e3] : ["µs", 1e6];
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(apart * scale) - 1e-9)));
  return `${d3.format(`,.${digits}f`)(seconds * scale)} ${unit}`;
}

/** Return how long something took. */
function length(seconds) {
  if (seconds === 0) return "no time";
  const [unit, scale] = seconds >= 1 ? ["s", 1] : seconds >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
  return `${d3.format(".4~g")(seconds * scale)} ${unit}`;
}

const DOING = {
  data: "fetches a batch", forward: "runs the forward pass", backward: "runs the backward pass",
  compress: "codes a vector", update: "updates x", communicate: "hands over", wait: "waits",
};

const GAP = "not recorded: Python between two phases, or an evaluation";

/** Return what an event is, as a sentence without its subject. */
function doing(run, i) {
  const op = run.opOf(i), phase = run.phaseOf(i), peer = run.peer[i], tag = run.tagOf(i);
  const what = run.chunk[i] >= 0 ? `chunk ${run.chunk[i]} (${tag})` : tag;
  if (op === "send") return `sends ${what} to rank ${peer}, ${COUNT(run.bytes[i])} bytes`;
  if (op === "recv") return `receives ${what} from rank ${peer}, ${COUNT(run.bytes[i])} bytes`;
  if (op === "read") return `reads x of rank ${peer}, ${COUNT(run.bytes[i])} bytes`;
  if (op === "drop") return `drops the gradient of rank ${peer}, which is ${staleness(run, i)} versions old`;
  if (op === "store") {
    const lost = run.stores.get(i).lost.map((one) => `rank ${run.rank[one]}'s update of step ${run.step[one] + 1}`);
    return `loads version ${run.version_read[i]} of x, updates it, and stores it over version ${run.version_applied[i]}` +
      (lost.length ? `, which loses ${lost.join(" and ")}` : "");
  }
  if (phase === "update" && run.version_read[i] >= 0) {
    return `applies what rank ${peer} computed on version ${run.version_read[i]} to version ` +
      `${run.version_applied[i]}: staleness ${staleness(run, i)}`;
  }
  if (phase === "wait" && tag === "release") return `waits until rank ${peer} has read what it was sent`;
  if (phase === "wait" && peer >= 0) return `waits for ${tag} from rank ${peer}`;
  return DOING[phase];
}

function staleness(run, i) { return run.version_applied[i] - run.version_read[i]; }

/** Return what an event is, as a sentence. */
function sentence(run, i, distance) {
  const of = page.runs.length > 1 ? `${run.facts.name}, ` : "";
  return `${inWords(run.t0[i], distance)}: ${of}rank ${run.rank[i]} ${doing(run, i)}.`;
}

/** Return the facts of an event, as pairs of a name and a value. */
function factsOf(run, i, distance) {
  const facts = [], message = run.messageOf(i);
  const is = run.facts.roles[run.rank[i]];
  facts.push(["rank", `${run.rank[i]} (${is})`]);
  if (!message) facts.push(["does", doing(run, i)]);
  if (run.epoch[i] === 0) facts.push(["when", "the start, before the first epoch"]);
  else if (is !== "server") facts.push(["when", `epoch ${run.epoch[i]}, step ${run.step[i] + 1}`]);
  else facts.push(["when", `epoch ${run.epoch[i]}`]);
  if (message) {
    facts.push(["who", `rank ${message.src} → rank ${message.dst}`], ["what", run.tagOf(i)]);
    if (run.chunk[i] >= 0) facts.push(["chunk", `${run.chunk[i]} (of 0 to ${run.ranks - 1})`]);
    facts.push(["bytes", COUNT(run.bytes[i])]);
    if (message.send >= 0) facts.push(["sent", inWords(message.sent, distance)]);
    else if (run.opOf(i) === "recv") facts.push(["sent", whyMissing(run, message.src, message.sent)]);
    if (message.recv >= 0 && message.send >= 0) {
      facts.push(["received", `${inWords(message.received, distance)}, ${length(message.received - message.sent)} later`]);
    } else if (message.recv < 0) facts.push(["received", whyMissing(run, message.dst, message.sent)]);
    if (run.version[i] >= 0) facts.push(["version of x", String(run.version[i])]);
  }
  if (run.opOf(i) === "read") {
    const [before, after] = [run.version_read[i], run.version_applied[i]];
    facts.push(["read", before === after ? `version ${before}` : `parts of versions ${before} to ${after}`]);
  }
  facts.push(["lasted", `${length(run.t1[i] - run.t0[i])}, from ${inWords(run.t0[i], distance)} on`]);
  return facts;
}
