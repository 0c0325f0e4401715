"use strict";
// The heatmap of class-pair potentials: a canvas, a slider over time, three ways to look closer.
(() => {
  const root = document.getElementById("heatmap");
  if (!root) return;
  const { runs, catalogs, scales } = JSON.parse(document.getElementById("heatmap-data").textContent);
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  const canvas = find("canvas"), context = canvas.getContext("2d");
  const slider = find("slider"), readout = find("readout"), lens = find("lens");
  const state = { run: null, frame: 0, task: 0, view: "all", near: null, cursor: null, printing: false };
  const ramps = { light: ramp(scales.light), dark: ramp(scales.dark) };
  const isDark = () => !state.printing && matchMedia("(prefers-color-scheme: dark)").matches;

  function ramp(stops) {
    const parsed = stops.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
    return Array.from({ length: 256 }, (_, level) => {
      const place = (level / 255) * (parsed.length - 1), left = Math.min(Math.floor(place), parsed.length - 2);
      return parsed[left].map((v, part) => Math.round(v + (place - left) * (parsed[left + 1][part] - v)));
    });
  }

  function open(number) {
    const run = runs[number];
    run.bytes ??= Uint8Array.from(atob(run.data), (c) => c.charCodeAt(0));
    run.place ??= run.order.reduce((place, c, i) => ((place[c] = i), place), []);
    Object.assign(state, { run, frame: run.steps.length - 1, task: 0, near: null, cursor: null });
    slider.max = state.frame;
    // The classes of a task are few enough to read, also on a phone.
    state.view = run.tasks.some((t) => t.tasks.length) ? "task" : run.order.length > 100 ? "most" : "all";
    root.querySelectorAll('input[name="view"]').forEach((e) => (e.checked = e.value === state.view));
    draw();
  }

  const nameOf = (c) => catalogs[state.run.catalog].names[c];
  const short = (text, limit = state.narrow ? 13 : 20) =>
    text.length > limit ? `${text.slice(0, Math.ceil(limit / 2))}…${text.slice(1 - Math.floor(limit / 2))}` : text;
  const numeral = (value, digits) => value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1");

  function value(i, j, frame = state.frame) {
    const n = state.run.order.length, [a, b] = i < j ? [i, j] : [j, i];
    const pair = a * n - (a * (a + 1)) / 2 + b - a - 1;
    return state.run.low + state.run.step * state.run.bytes[frame * ((n * (n - 1)) / 2) + pair];
  }

  const tasks = () => state.run.tasks.map((t) => ({ ...t, now: t.tasks[state.task % (t.tasks.length || 1)] || [] }));

  function shownClasses(width) {
    const { order, rank, place } = state.run;
    const inOrder = (classes) => [...new Set(classes)].sort((a, b) => place[a] - place[b]);
    const around = (c) => order.slice(Math.max(0, place[c] - 7), place[c] + 8);
    if (state.near) return inOrder(state.near.flatMap(around));
    if (state.view === "most") return inOrder(rank.slice(0, Math.max(12, Math.min(40, Math.floor((width * 0.78) / 14)))));
    const both = inOrder(tasks().flatMap((task) => task.now));
    return state.view === "task" && both.length > 1 ? both : order;
  }

  function measure() {
    const width = Math.min(canvas.parentElement.clientWidth, 780);
    state.narrow = width < 500;
    const classes = shownClasses(width);
    let margin = 22, size = 0;
    const guess = (width * 0.78) / classes.length;
    if (guess >= 8.5) {
      size = Math.min(13, guess * 0.92);
      context.font = `${size}px system-ui, sans-serif`;
      const widest = Math.max(...classes.map((c) => context.measureText(short(nameOf(c))).width));
      margin = Math.min(width * 0.34, widest + 28);
    }
    const cell = Math.min((width - margin - 2) / classes.length, 44);
    return { classes, margin, size, cell, width: margin + cell * classes.length + 2 };
  }

  function draw() {
    const box = measure(), { classes, margin, cell, width } = box, ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.height = Math.round(width * ratio);
    canvas.style.width = canvas.style.height = `${width}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    state.box = box;
    const ink = state.printing ? "#20242b" : getComputedStyle(canvas).color;
    paintCells(classes, margin, cell);
    paintNames(box, ink);
    for (const task of tasks()) paintTask(task, box);
    if (state.cursor) paintCursor(box, ink);
    describe();
  }

  function paintCells(classes, margin, cell) {
    const n = classes.length, image = new ImageData(n, n);
    const { low, step } = state.run, colors = ramps[isDark() ? "dark" : "light"];
    const diagonal = isDark() ? [64, 68, 78] : [205, 207, 212];
    classes.forEach((a, row) => classes.forEach((b, column) => {
      const level = Math.round((value(a, b) - low) / step);
      const color = a === b ? diagonal : colors[Math.max(0, Math.min(255, level))];
      image.data.set([...color, 255], 4 * (row * n + column));
    }));
    const small = document.createElement("canvas");
    small.width = small.height = n;
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, margin, margin, n * cell, n * cell);
  }

  function paintNames({ classes, margin, size, cell }, ink) {
    if (!size) return;
    context.font = `${size}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.fillStyle = ink;
    classes.forEach((c, i) => {
      const at = margin + (i + 0.5) * cell;
      context.textAlign = "right";
      context.fillText(short(nameOf(c)), margin - 22, at, margin - 24);
      context.save();
      context.translate(at, margin - 22);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(short(nameOf(c)), 0, 0, margin - 24);
      context.restore();
    });
  }

  // Baseline: hollow circles and dashed frames. The run itself: solid diamonds and frames.
  function paintTask(task, { classes, margin, cell }) {
    const at = task.now.map((c) => classes.indexOf(c)).filter((i) => i >= 0);
    const offset = task.baseline ? 14 : 6, radius = Math.max(2.5, Math.min(4, cell / 2));
    context.strokeStyle = context.fillStyle = task.color;
    context.lineWidth = 1.8;
    for (const i of at) {
      const middle = margin + (i + 0.5) * cell;
      mark(task, margin - offset, middle, radius);
      mark(task, middle, margin - offset, radius);
    }
    context.setLineDash(task.baseline ? [3, 2] : []);
    const side = Math.max(cell, 5), shift = (cell - side) / 2;
    for (const i of at) for (const j of at) {
      if (i !== j) context.strokeRect(margin + i * cell + shift + 0.5, margin + j * cell + shift + 0.5, side - 1, side - 1);
    }
    context.setLineDash([]);
  }

  function mark(task, x, y, radius) {
    context.beginPath();
    if (task.baseline) {
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.stroke();
    } else {
      context.moveTo(x, y - radius - 1);
      context.lineTo(x + radius + 1, y);
      context.lineTo(x, y + radius + 1);
      context.lineTo(x - radius - 1, y);
      context.fill();
    }
  }

  function paintCursor({ margin, cell, classes }, ink) {
    const { row, column } = state.cursor, length = classes.length * cell;
    context.strokeStyle = "rgba(128, 128, 128, 0.9)";
    context.lineWidth = 1;
    context.strokeRect(margin, margin + row * cell, length, cell);
    context.strokeRect(margin + column * cell, margin, cell, length);
    context.strokeStyle = ink;
    context.lineWidth = 2;
    context.strokeRect(margin + column * cell, margin + row * cell, cell, cell);
  }

  function describe() {
    const { run, cursor, box } = state, step = `step ${run.steps[state.frame].toLocaleString("en")}`;
    slider.value = state.frame;
    slider.setAttribute("aria-valuetext", step);
    find("step").textContent = step;
    find("low").textContent = numeral(run.low, 2);
    find("high").textContent = numeral(run.low + 255 * run.step, 2);
    find("precision").textContent = `±${(run.step / 2).toPrecision(1)}`;
    const count = Math.max(0, ...run.tasks.map((t) => t.tasks.length));
    find("tasks").hidden = count === 0;
    find("task-number").textContent = `task ${state.task + 1} of ${count}`;
    find("task-classes").replaceChildren(...tasks().map(taskLine));
    find("zoom").textContent = state.near ? "Back" : "Zoom in here";
    find("zoom").disabled = !cursor && !state.near;
    if (!cursor) {
      readout.textContent = "Point at a cell, tap it, or use the arrow keys to read it.";
      lens.hidden = true;
      return;
    }
    const a = box.classes[cursor.row], b = box.classes[cursor.column];
    const log = value(a, b);
    readout.textContent = a === b
      ? `${nameOf(a)}: a class forms no pair with itself.`
      : `${nameOf(a)} and ${nameOf(b)}: log potential ${numeral(log, 2)} (potential ${Math.exp(log).toPrecision(3)}) at ${step}.`;
    showLens(a, b);
  }

  function taskLine(task) {
    const line = document.createElement("li"), names = document.createElement("span");
    const symbol = document.createElement("span");
    symbol.textContent = task.baseline ? "○" : "◆";
    symbol.style.color = task.color;
    symbol.setAttribute("aria-hidden", "true");
    const seen = task.now.filter((c) => state.box.classes.includes(c)).length;
    const mean = (values) => values.reduce((sum, v) => sum + v, 0) / (values.length || 1);
    const within = (classes) => mean(classes.flatMap((a, i) => classes.slice(i + 1).map((b) => value(a, b))));
    const all = numeral(mean(task.tasks.map(within)), 2);
    const view = seen < task.now.length ? `; ${seen} of ${task.now.length} in view` : "";
    names.textContent = ` ${task.name}: ${task.now.map(nameOf).join(", ")}. Mean log potential of its pairs `
      + `${numeral(within(task.now), 2)}, of all ${task.tasks.length} tasks ${all}${view}.`;
    line.append(symbol, names);
    return line;
  }

  function showLens(a, b) {
    const { images } = catalogs[state.run.catalog];
    lens.hidden = !images.length;
    if (lens.hidden) return;
    lens.replaceChildren(...[a, b].map((c) => Object.assign(new Image(), { src: images[c], alt: "" })));
  }

  function point(event) {
    const { margin, cell, classes } = state.box, frame = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - frame.left - margin) / cell);
    const row = Math.floor((event.clientY - frame.top - margin) / cell);
    const inside = Math.min(row, column) >= 0 && Math.max(row, column) < classes.length;
    if (!inside || (state.cursor && state.cursor.row === row && state.cursor.column === column)) return;
    look({ cursor: { row, column } });
  }

  function move(event) {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter") zoom();
    if (event.key === "Escape") look({ cursor: null, near: null });
    if (!by) return;
    event.preventDefault();
    const last = state.box.classes.length - 1, { row, column } = state.cursor || { row: 0, column: 0 };
    const kept = (place) => Math.max(0, Math.min(last, place));
    look({ cursor: { row: kept(row + by[0]), column: kept(column + by[1]) } });
  }

  function look(change) {
    Object.assign(state, change);
    draw();
  }

  function zoom() {
    if (state.near) return look({ near: null, cursor: null });
    if (!state.cursor) return undefined;
    const { row, column } = state.cursor, pair = [state.box.classes[row], state.box.classes[column]];
    state.near = pair;
    const classes = shownClasses(0);
    return look({ cursor: { row: classes.indexOf(pair[0]), column: classes.indexOf(pair[1]) } });
  }

  function stepTask(by) {
    const count = Math.max(1, ...state.run.tasks.map((t) => t.tasks.length));
    const resets = state.view === "task" ? { cursor: null } : {};
    look({ task: (state.task + by + count) % count, ...resets });
  }

  function print(now) {
    if (now) state.frame = state.run.steps.length - 1;
    look({ printing: now, cursor: now ? null : state.cursor });
  }

  slider.addEventListener("input", () => look({ frame: Number(slider.value) }));
  find("previous").addEventListener("click", () => stepTask(-1));
  find("next").addEventListener("click", () => stepTask(1));
  find("zoom").addEventListener("click", zoom);
  find("run")?.addEventListener("change", (event) => open(Number(event.target.value)));
  root.querySelectorAll('input[name="view"]').forEach((choice) =>
    choice.addEventListener("change", () => look({ view: choice.value, near: null, cursor: null })));
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("dblclick", zoom);
  canvas.addEventListener("keydown", move);
  window.addEventListener("resize", () => look({}));
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (event) => print(event.matches));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => look({}));
  open(0);
})();
