// Returns what cannot be read on this page as it is laid out now: {rule, where, text} each.
// Text counts line by line, as its boxes are painted; what is hidden from sight does not.
() => {
  const ENOUGH = 4.5; // contrast, to one
  const SLACK = 1; // pixels that rounding may cost
  const faults = [];
  const wide = document.documentElement.clientWidth;

  function selector(element) {
    if (element.id) {
      return `#${CSS.escape(element.id)}`;
    }
    const own = element.localName + Array.from(element.classList, (each) => `.${CSS.escape(each)}`).join("");
    const parent = element.parentElement;
    return parent ? `${selector(parent)} > ${own}` : own;
  }

  function fault(rule, element, text) {
    faults.push({ rule, where: selector(element), text });
  }

  function isForScreenReaders(element) {
    const style = getComputedStyle(element);
    return style.clipPath === "inset(50%)" || style.clip === "rect(0px, 0px, 0px, 0px)";
  }

  function isSeen(element) {
    for (let each = element; each; each = each.parentElement) {
      if (isForScreenReaders(each)) {
        return false;
      }
    }
    return element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  }

  // -- lines of text, each with the boxes around it that cut off or scroll
  function boxes(element) {
    const found = [];
    for (let each = element; each && each !== document.documentElement; each = each.parentElement) {
      const { overflowX, overflowY } = getComputedStyle(each);
      if (each !== document.body && (overflowX !== "visible" || overflowY !== "visible")) {
        found.push({ element: each, overflowX, overflowY, rect: each.getBoundingClientRect() });
      }
    }
    return found;
  }

  function lines() {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      if (!node.data.trim() || element.closest("script, style, noscript, option") || !isSeen(element)) {
        continue;
      }
      range.selectNodeContents(node);
      const around = boxes(element);
      for (const rect of range.getClientRects()) {
        if (rect.width > SLACK && rect.height > SLACK) {
          found.push({ node, element, rect, around, text: node.data.trim().slice(0, 40) });
        }
      }
    }
    return found;
  }

  function isScrolled(line) {
    const { rect } = line;
    return line.around.some(
      (box) => box.overflowY !== "visible" && (rect.bottom > box.rect.bottom + SLACK || rect.top < box.rect.top - SLACK),
    );
  }

  function checkEdges(line) {
    const { rect, element, text } = line;
    if (rect.right > wide + SLACK || rect.left < -SLACK) {
      fault("sticks-out", element, `"${text}" ends at ${Math.round(rect.right)} of ${wide} px`);
    }
    for (const box of line.around) {
      if (rect.right > box.rect.right + SLACK || rect.left < box.rect.left - SLACK) {
        fault("cut-off", element, `"${text}" is cut off at the side by ${selector(box.element)}`);
      }
      const cuts = ["hidden", "clip"].includes(box.overflowY);
      if (cuts && (rect.bottom > box.rect.bottom + SLACK || rect.top < box.rect.top - SLACK)) {
        fault("cut-off", element, `"${text}" is cut off by ${selector(box.element)}`);
      }
    }
  }

  // Two lines overlap if the middle halves of their boxes do: the boxes of close lines may touch.
  function checkOverlaps(found) {
    const middles = found
      .filter((line) => !isScrolled(line))
      .map((line) => {
        const { top, height, left, right } = line.rect;
        return { line, top: top + height / 4, bottom: top + (height * 3) / 4, left: left + SLACK, right: right - SLACK };
      })
      .sort((a, b) => a.top - b.top);
    middles.forEach((a, index) => {
      for (const b of middles.slice(index + 1)) {
        if (b.top >= a.bottom) {
          break;
        }
        if (a.line.node !== b.line.node && a.left < b.right && b.left < a.right) {
          fault("overlap", a.line.element, `"${a.line.text}" and "${b.line.text}"`);
        }
      }
    });
  }

  // -- colours, of each size of text: axe-core leaves open what it is not sure about, and what CSS writes
  function channels(colour) {
    const [red, green, blue, alpha = 1] = colour.match(/[\d.]+/g).map(Number);
    return { red, green, blue, alpha };
  }

  function over(top, bottom) {
    const mix = (name) => top[name] * top.alpha + bottom[name] * (1 - top.alpha);
    return { red: mix("red"), green: mix("green"), blue: mix("blue"), alpha: 1 };
  }

  function ancestors(element) {
    return element ? [...ancestors(element.parentElement), element] : [];
  }

  // The browser's own, light or dark as CSS or a <meta> allows it.
  function systemCanvas() {
    const probe = document.createElement("p");
    probe.style.backgroundColor = "Canvas";
    document.body.append(probe);
    const colour = getComputedStyle(probe).backgroundColor;
    probe.remove();
    return channels(colour);
  }

  const canvas = systemCanvas();

  function background(element) {
    const layers = ancestors(element).map((each) => channels(getComputedStyle(each).backgroundColor));
    return layers.reduce((below, layer) => over(layer, below), canvas);
  }

  function luminance({ red, green, blue }) {
    const [r, g, b] = [red, green, blue].map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  function contrast(element, style) {
    const behind = background(element);
    const front = channels(style.color);
    front.alpha *= ancestors(element).reduce((rest, each) => rest * getComputedStyle(each).opacity, 1);
    const [low, high] = [luminance(over(front, behind)), luminance(behind)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }

  function checkColour(element, style, text) {
    const found = contrast(element, style);
    if (found < ENOUGH && !element.closest(":disabled")) {
      fault("contrast", element, `${found.toFixed(2)} : 1 of ${text}`);
    }
  }

  function checkColours(found) {
    new Set(found.map((line) => line.element)).forEach((element) => {
      checkColour(element, getComputedStyle(element), `"${element.innerText.slice(0, 40)}"`);
    });
    for (const element of document.body.querySelectorAll("*")) {
      for (const part of ["::before", "::after", "::placeholder"]) {
        const style = getComputedStyle(element, part);
        const shown = part === "::placeholder" ? element.placeholder : style.content;
        const isText = shown && shown !== "none" && shown !== "normal" && /[\p{L}\p{N}]/u.test(shown);
        if (isText && isSeen(element)) {
          checkColour(element, style, `${part} ${shown}`);
        }
      }
    }
  }

  if (document.documentElement.scrollWidth > wide) {
    fault("overflow", document.documentElement, `${document.documentElement.scrollWidth} of ${wide} px`);
  }
  for (const element of document.body.querySelectorAll("*")) {
    const sideways = ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
    if (sideways && isSeen(element) && element.scrollWidth > element.clientWidth + SLACK) {
      fault("overflow", element, `${element.scrollWidth} of ${element.clientWidth} px`);
    }
  }
  // An error beside a field is read aloud only if the field names an element that is there.
  for (const element of document.querySelectorAll("[aria-describedby], [aria-labelledby]")) {
    const named = `${element.getAttribute("aria-describedby") ?? ""} ${element.getAttribute("aria-labelledby") ?? ""}`;
    const missing = named.split(" ").filter((id) => id && !document.getElementById(id));
    if (missing.length > 0) {
      fault("names-nothing", element, missing.join(" "));
    }
  }
  const found = lines();
  found.forEach(checkEdges);
  checkOverlaps(found);
  checkColours(found);
  return faults;
}
