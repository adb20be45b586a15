const ROWS = 200; // in the table

/** The messages in view as a table, for those who cannot see the lanes, or want numbers; a button selects each. */
class Messages {
  constructor(details) {
    this.details = details;
    this.summary = details.querySelector("summary");
    this.box = details.querySelector(".scroll");
    details.addEventListener("toggle", () => this.fill());
    drawers.view.push(() => this.fill());
  }

  inView(run) {
    const [a, b] = page.view, [from, to] = run.sending.overlapping(a, b);
    return run.messages.slice(from, to).filter((message) => message.received >= a);
  }

  fill() {
    const found = page.runs.flatMap((run) => this.inView(run).map((message) => [run, message]));
    this.summary.textContent = `Messages in view: ${COUNT(found.length)}`;
    if (!this.details.open) return;
    const two = page.runs.length > 1, distance = page.view[1] - page.view[0];
    const some = found.sort(([, a], [, b]) => a.sent - b.sent).slice(0, ROWS);
    const table = d3.create("table");
    const more = found.length > ROWS ? `; the first ${ROWS} of ${COUNT(found.length)}, zoom in to see the others` : "";
    table.append("caption").text(`In the order in which they were sent${more}. A button goes to the message.`);
    const heads = [...(two ? ["run"] : []), "sent", "from", "to", "what", "bytes", "received", "chunk", "version of x"];
    table.append("thead").append("tr").selectAll("th").data(heads).join("th").attr("scope", "col").text((head) => head);
    const rows = table.append("tbody").selectAll("tr").data(some).join("tr");
    if (two) rows.append("td").text(([run]) => run.facts.name);
    rows.append("td").append("button").attr("type", "button")
      .text(([run, message]) => `${inWords(message.sent, distance)}${message.send < 0 ? ` (${run.opOf(message.i)})` : ""}`)
      .attr("aria-label", ([run, message]) => `Go to: ${sentence(run, message.i, distance)}`)
      .on("click", (_, [run, message]) => select(run, message.i));
    const cells = [
      ([, message]) => `rank ${message.src}`, ([, message]) => `rank ${message.dst}`,
      ([run, message]) => run.tagOf(message.i), ([run, message]) => COUNT(run.bytes[message.i]),
      ([, message]) => (message.recv < 0 ? "–" : inWords(message.received, distance)),
      ([run, message]) => known(run.chunk[message.i]), ([run, message]) => known(run.version[message.i]),
    ];
    for (const cell of cells) rows.append("td").text(cell);
    this.box.replaceChildren(table.node());
  }
}

function known(number) { return number < 0 ? "–" : String(number); }
