/** The source that is at work: of the current event, or of what its rank did before it; other ranks in the margin. */
class Code {
  constructor(run, section) {
    this.run = run;
    this.title = section.querySelector(".file");
    this.box = section.querySelector(".code");
    this.box.ariaLabel = `Code of ${run.facts.name}`;
    this.files = new Map();
    for (const [name, lines] of Object.entries(run.facts.sources)) {
      const list = document.createElement("ol");
      list.innerHTML = lines.map((line) => `<li><b></b><code>${line || " "}</code></li>`).join("");
      this.files.set(name, list);
    }
    const uses = d3.rollup(run.line, (events) => events.length, (line) => run.places[line].file);
    this.main = d3.greatest(this.files.keys(), (file) => uses.get(file)); // what is shown before there is a line
    this.shown = null;
    drawers.moment.push(() => this.draw());
  }

  draw() {
    const mine = toldOf(this.run), place = mine >= 0 ? this.run.placeOf(mine) : null;
    if (this.run.facts.lines.every((line) => !line)) {
      this.say("The records of this run do not say which line was at work: it is older than that, or has no strategy.");
      return;
    }
    if (!place) {
      const doing = mine >= 0 ? `rank ${this.run.rank[mine]}: ${this.run.phaseOf(mine)}` : "Nothing has begun";
      const next = this.next(mine);
      if (this.files.has(next?.file)) this.show(next.file);
      else if (!this.shown) this.show(this.main);
      this.mark(null);
      if (this.shown && next?.file === this.shown) this.bringIntoView(this.line(next));
      const file = next ? `; next at ${next.file}, line ${next.number}` : "";
      this.title.textContent = `${doing}, in the training loop, outside the algorithm${file}`;
      return;
    }
    if (!this.files.has(place.file)) {
      this.say(this.run.facts.missing[place.file]);
      return;
    }
    this.show(place.file);
    this.title.textContent = `rank ${this.run.rank[mine]} at ${place.file}, line ${place.number}`;
    this.mark(place);
  }

  /** Where in the algorithm the rank of an event is next, or, before the first event, any rank; null: nowhere. */
  next(i) {
    const events = i >= 0 ? this.run.lanes[this.run.rank[i]].events : d3.range(this.run.size);
    for (let k = d3.bisectRight(events, i); k < events.length; k++) {
      const place = this.run.placeOf(events[k]);
      if (place) return place;
    }
    return null;
  }

  say(text) {
    this.title.textContent = text;
    this.shown = null;
    this.box.replaceChildren();
  }

  show(file) {
    if (!file || this.shown === file) return;
    this.shown = file;
    this.box.replaceChildren(this.files.get(file));
  }

  /** Highlight the line, and write beside every line the ranks that are at it. */
  mark(place) {
    for (const old of this.box.querySelectorAll(".now, .others")) {
      old.classList.remove("now", "others");
      old.removeAttribute("aria-current");
      old.querySelector("b").textContent = "";
    }
    if (!this.shown) return;
    const list = this.files.get(this.shown), passed = passedOf(this.run), ranks = new Map();
    for (let rank = 0; rank < this.run.ranks; rank++) {
      const i = this.run.at(rank, passed, page.t), at = i >= 0 ? this.run.placeOf(i) : null;
      if (at?.file === this.shown) ranks.set(at.number, [...(ranks.get(at.number) ?? []), rank]);
    }
    for (const [number, some] of ranks) {
      const line = list.children[number - 1];
      line.classList.add("others");
      line.querySelector("b").textContent = some.length > 4 ? `${some.length} ranks` : some.join(" ");
    }
    if (!place) return;
    const line = this.line(place);
    line.classList.add("now");
    line.setAttribute("aria-current", "true");
    this.bringIntoView(line);
  }

  line(place) { return this.files.get(place.file).children[place.number - 1]; }

  bringIntoView({ offsetTop }) {
    const { scrollTop, clientHeight } = this.box, isInView = offsetTop >= scrollTop + 30;
    if (isInView && offsetTop <= scrollTop + clientHeight - 50) return;
    this.box.scrollTop = offsetTop - clientHeight / 2;
  }
}
