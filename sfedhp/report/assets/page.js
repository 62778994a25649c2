// Hover, keyboard, sorting and, on a live page, polling. The page can be read without this file.
"use strict";
(() => {
  const $ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = document.getElementById("tip");
  let readouts = {};

  function showTip(text, x, y) {
    tip.textContent = text; // never as HTML: names come from data
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(Math.max(6, x + 14), innerWidth - width - 6);
    const top = y + 18 + height > innerHeight ? y - height - 10 : y + 18;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${Math.max(6, top)}px`;
  }
  let follow = null; // shows the tip of what has the focus again, after the page has moved
  const hideTip = () => { tip.hidden = true; follow = null; document.querySelector(".cross")?.remove(); };
  // Calls `show` where the pointer is, or where a finger taps; the tip of a tap stays until the next one.
  function onPointer(svg, show, leave) {
    for (const kind of ["pointermove", "click"]) svg.addEventListener(kind, show);
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); });
  }

  // Targets: clients of the tree, bars, classes. One of each chart can be reached with Tab, the others with arrows.
  function setUpTargets(svg) {
    const targets = $(".target", svg);
    if (!targets.length) return;
    const leave = () => { $(".target.active", svg).forEach((each) => each.classList.remove("active")); hideTip(); };
    targets[0].setAttribute("tabindex", "0");
    onPointer(svg, (event) => {
      const target = event.target.closest(".target");
      leave();
      if (!target) return;
      target.classList.add("active");
      showTip(target.getAttribute("aria-label").replaceAll("; ", "\n"), event.clientX, event.clientY);
    }, leave);
    svg.addEventListener("focusin", (event) => {
      const target = event.target.closest(".target");
      if (!target) return;
      follow = () => {
        const box = target.getBoundingClientRect();
        showTip(target.getAttribute("aria-label").replaceAll("; ", "\n"), box.left, box.bottom - 8);
      };
      follow();
    });
    svg.addEventListener("focusout", hideTip);
    svg.addEventListener("keydown", (event) => {
      const now = targets.indexOf(document.activeElement);
      if (now < 0) return;
      if (event.key === "Escape") return hideTip();
      const next = {
        ArrowRight: () => now + 1, ArrowLeft: () => now - 1, Home: () => 0, End: () => targets.length - 1,
        ArrowDown: () => nearest(targets, now, 1), ArrowUp: () => nearest(targets, now, -1),
      }[event.key]?.();
      if (next === undefined) return;
      event.preventDefault();
      const target = targets[Math.min(Math.max(next, 0), targets.length - 1)];
      targets.forEach((each) => each.setAttribute("tabindex", "-1"));
      target.setAttribute("tabindex", "0");
      target.focus();
    });
  }

  // The target above or below that is nearest to the middle of this one.
  function nearest(targets, now, way) {
    const middle = (each) => {
      const box = each.getBoundingClientRect();
      return [box.left + box.width / 2, box.top + box.height / 2];
    };
    const [x, y] = middle(targets[now]);
    let best = now, least = Infinity;
    targets.forEach((each, place) => {
      const [left, top] = middle(each);
      const down = (top - y) * way;
      if (down < 2) return;
      const far = down * 3 + Math.abs(left - x);
      if (far < least) { least = far; best = place; }
    });
    return best;
  }

  // Readouts: the values of all series of a chart at one place of its x axis.
  function setUpReadout(svg) {
    const data = readouts[svg.id];
    if (!data || !data.places.length) return;
    let now = data.places.length - 1;
    const cross = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cross.setAttribute("class", "cross");
    cross.setAttribute("y1", data.top);
    cross.setAttribute("y2", data.bottom);
    const text = () => [
      data.titles[now],
      ...data.series.filter((each) => each.values[now] != null).map((each) => {
        const spread = each.deviations ? ` ± ${each.deviations[now].toFixed(data.digits)}` : "";
        return `${each.name}: ${each.values[now].toFixed(data.digits)}${spread}${data.unit ? ` ${data.unit}` : ""}`;
      }),
    ].join("\n");
    function show(x, y) {
      cross.setAttribute("x1", data.places[now]);
      cross.setAttribute("x2", data.places[now]);
      svg.append(cross);
      const box = svg.getBoundingClientRect();
      const place = box.left + data.places[now] * box.width / svg.viewBox.baseVal.width;
      showTip(text(), x ?? place, y ?? box.top + box.height / 3);
      follow = x === undefined ? show : null;
    }
    onPointer(svg, (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      now = data.places.reduce((best, place, index) => (
        Math.abs(place - x) < Math.abs(data.places[best] - x) ? index : best), 0);
      show(event.clientX, event.clientY);
    }, hideTip);
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(); });
    svg.addEventListener("blur", hideTip);
    svg.addEventListener("keydown", (event) => {
      const last = data.places.length - 1;
      const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: last,
        PageUp: now - Math.ceil(last / 10), PageDown: now + Math.ceil(last / 10) }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      now = Math.min(Math.max(next, 0), last);
      show();
    });
  }

  // Tables: a click on a heading sorts; a second click turns the order round. Empty cells stay last.
  function sort(table, column, way) {
    const value = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value ?? cell.textContent;
    };
    const numbers = table.tHead.rows[0].cells[column].dataset.sort === "number";
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return way * (numbers ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true }));
    };
    const rows = [...table.tBodies[0].rows].sort(compare);
    table.tBodies[0].append(...rows);
    [...table.tHead.rows[0].cells].forEach((cell, place) => {
      if (place === column) cell.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
  }
  function setUpTable(table) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      cell.querySelector("button")?.addEventListener("click", () => {
        sort(table, column, cell.getAttribute("aria-sort") === "ascending" ? -1 : 1);
      });
    });
  }

  // Several runs: one is shown at a time.
  function setUpPicker(picker) {
    const choose = () => $("[data-run]").forEach((each) => { each.hidden = each.dataset.run !== picker.value; });
    picker.addEventListener("change", choose);
    choose();
  }

  function setUp(root) {
    const written = document.getElementById("readouts");
    if (written && root === document) readouts = JSON.parse(written.textContent);
    $("svg.chart", root).forEach((svg) => { setUpTargets(svg); if ("readout" in svg.dataset) setUpReadout(svg); });
    $("table.sortable", root).forEach(setUpTable);
    $("select.picker", root).forEach(setUpPicker);
  }

  const button = document.querySelector(".theme");
  button.addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
  button.hidden = false;
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  addEventListener("pointerdown", (event) => { if (!event.target.closest("svg.chart")) hideTip(); });
  addEventListener("scroll", () => (follow ? follow() : hideTip()), { passive: true });
  setUp(document);

  // Live: ask for the content again, and put it in place without losing what the reader has chosen.
  const live = document.body.dataset.live;
  if (!live) return;
  const main = document.querySelector("main");
  const state = document.getElementById("live-state");
  let version = document.body.dataset.version;
  function choices() {
    return {
      open: $("details[open]", main).map((each) => each.id),
      picked: $("select.picker", main).map((each) => each.value),
      sorted: $("th[aria-sort]", main).map((cell) => [
        cell.closest("table").id, cell.cellIndex, cell.getAttribute("aria-sort") === "ascending" ? 1 : -1]),
      focus: document.activeElement?.id,
      label: document.activeElement?.getAttribute?.("data-key"),
    };
  }
  function restore(chosen) {
    chosen.open.forEach((id) => { const each = document.getElementById(id); if (each) each.open = true; });
    $("select.picker", main).forEach((each, place) => {
      const value = chosen.picked[place];
      if ([...each.options].some((option) => option.value === value)) {
        each.value = value;
        each.dispatchEvent(new Event("change"));
      }
    });
    chosen.sorted.forEach(([id, column, way]) => {
      const table = document.getElementById(id);
      if (table) sort(table, column, way);
    });
    const again = chosen.focus ? document.getElementById(chosen.focus)
      : chosen.label ? $("[data-key]", main).find((each) => each.dataset.key === chosen.label) : null;
    again?.focus({ preventScroll: true });
  }
  async function poll() {
    try {
      const answer = await fetch(`${live}?version=${encodeURIComponent(version)}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const update = await answer.json();
      if (update.version !== version) {
        const chosen = choices();
        const scroll = scrollY;
        main.innerHTML = update.html; // written by the server, which escapes all text from data
        readouts = update.readouts;
        version = update.version;
        setUp(main);
        restore(chosen);
        scrollTo(0, scroll);
      }
      state.textContent = update.state;
      state.className = "soft";
    } catch {
      state.textContent = "no answer from sfedhp watch; trying again";
      state.className = "badge";
    }
    setTimeout(poll, Number(document.body.dataset.every));
  }
  setTimeout(poll, Number(document.body.dataset.every));
})();
