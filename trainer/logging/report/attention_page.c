/* The HTML page of attention weights: a small picture of each head, a large one of the selected
 * head, and the tokens of the text, which are shaded by the weights of the selected query. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/logging/report/report.h"
#include "trainer/logging/report/report_impl.h"

static const char style[] =
    "<style>\n"
    "h1{overflow-wrap:anywhere}.heads{display:grid;gap:6px;overflow-x:auto;padding:2px}.heads "
    "button{padding:2px;border:1px "
    "solid var(--line);border-radius:4px;background:var(--card);color:var(--soft);font-size:11px;"
    "cursor:pointer;min-width:58px}.heads button[aria-pressed=true]{outline:3px solid var(--c1)}"
    "canvas{display:block;width:100%;image-rendering:pixelated;background:var(--page)}"
    ".view{max-width:640px;touch-action:pan-y}.tokens{display:flex;flex-wrap:wrap;gap:3px;"
    "margin:10px 0}.tokens button{font:inherit;border:1px solid var(--line);border-radius:4px;"
    "padding:1px 5px;color:var(--text);white-space:pre;cursor:pointer;background:var(--card)}"
    ".tokens button[aria-pressed=true]{outline:3px solid var(--c1)}\n"
    "</style>\n";

static const char body[] =
    "<p class=\"soft\">Rows are queries, columns are keys. The shade is the square root of the "
    "weight. Select a head, then a token: the other tokens are shaded by the attention of this "
    "token to them. The arrow keys move between tokens and heads.</p>\n"
    "<noscript><p>This page needs JavaScript.</p></noscript>\n"
    "<h2>All heads</h2><div class=\"heads\" id=\"heads\"></div>\n"
    "<h2 id=\"name\"></h2><div class=\"tokens\" id=\"tokens\"></div>\n"
    "<p id=\"value\" aria-live=\"polite\">&nbsp;</p>\n"
    "<canvas class=\"view\" id=\"view\"></canvas>\n";

static const char script[] =
    "<script>\n"
    "const data = JSON.parse(document.getElementById('data').textContent);\n"
    "const n = data.tokens.length, get = id => document.getElementById(id);\n"
    "const maps = data.weights.map(text => {\n"
    "  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));\n"
    "  const view = new DataView(bytes.buffer);\n"
    "  return Float32Array.from({length: n * n}, (_, i) => view.getUint16(2 * i, true) / 65535);\n"
    "});\n"
    "let head = 0, query = n - 1, pointed = null;\n"
    "const rgb = () => {\n"
    "  const c = getComputedStyle(document.documentElement).getPropertyValue('--c0').trim();\n"
    "  return [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16));\n"
    "};\n"
    "const draw = (canvas, map) => {\n"
    "  canvas.width = canvas.height = n;\n"
    "  const context = canvas.getContext('2d'), image = context.createImageData(n, n);\n"
    "  const color = rgb();\n"
    "  map.forEach((w, i) => {\n"
    "    image.data.set([...color, Math.round(255 * Math.sqrt(w))], 4 * i);\n"
    "  });\n"
    "  context.putImageData(image, 0, 0);\n"
    "};\n"
    "const label = h => `layer ${Math.floor(h / data.heads)}, head ${h % data.heads}`;\n"
    "const show = () => {\n"
    "  const map = maps[head], key = pointed;\n"
    "  get('name').textContent = label(head)[0].toUpperCase() + label(head).slice(1);\n"
    "  headButtons.forEach((b, i) => b.setAttribute('aria-pressed', i === head));\n"
    "  tokenButtons.forEach((b, i) => {\n"
    "    const w = map[query * n + i];\n"
    "    b.setAttribute('aria-pressed', i === query);\n"
    "    b.title = `${w.toFixed(4)}`;\n"
    "    b.style.background = `color-mix(in srgb, var(--c0) ${70 * Math.sqrt(w)}%, "
    "var(--page))`;\n"
    "  });\n"
    "  const order = [...data.tokens.keys()].sort((a, b) => map[query * n + b] - map[query * n + "
    "a]);\n"
    "  const list = key === null ? order.slice(0, 3) : [key];\n"
    "  get('value').textContent = `${query}: ${data.tokens[query]} attends to ` + list.map(i =>\n"
    "    `${i}: ${data.tokens[i]} (${map[query * n + i].toFixed(4)})`).join(', ');\n"
    "};\n"
    "const select = h => { head = h; draw(get('view'), maps[head]); show(); };\n"
    "const move = (buttons, step, columns) => e => {\n"
    "  const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns}[e.key];\n"
    "  const at = buttons.indexOf(document.activeElement) + (by || 0);\n"
    "  if (!by || at < 0 || at >= buttons.length) { return; }\n"
    "  buttons[at].focus();\n"
    "  step(at);\n"
    "  e.preventDefault();\n"
    "};\n"
    "const headButtons = maps.map((map, h) => {\n"
    "  const button = document.createElement('button'), canvas = "
    "document.createElement('canvas');\n"
    "  draw(canvas, map);\n"
    "  button.append(canvas, `${Math.floor(h / data.heads)}.${h % data.heads}`);\n"
    "  button.setAttribute('aria-label', label(h));\n"
    "  button.onclick = () => select(h);\n"
    "  return button;\n"
    "});\n"
    "const tokenButtons = data.tokens.map((token, i) => {\n"
    "  const button = document.createElement('button');\n"
    "  button.textContent = token.replaceAll('\\n', '\\u23ce') || '\\u00a0';\n"
    "  button.onclick = () => { query = i; pointed = null; show(); };\n"
    "  button.onpointerenter = () => { pointed = i; show(); };\n"
    "  button.onpointerleave = () => { pointed = null; show(); };\n"
    "  return button;\n"
    "});\n"
    "get('heads').style.gridTemplateColumns = `repeat(${data.heads}, minmax(58px, 120px))`;\n"
    "get('heads').append(...headButtons);\n"
    "get('tokens').append(...tokenButtons);\n"
    "get('heads').onkeydown = move(headButtons, select, data.heads);\n"
    "get('tokens').onkeydown = move(tokenButtons, i => { query = i; show(); }, 1);\n"
    "get('view').onpointermove = e => {\n"
    "  const box = get('view').getBoundingClientRect();\n"
    "  const at = (v, size) => Math.min(n - 1, Math.max(0, Math.floor(v / size * n)));\n"
    "  query = at(e.clientY - box.top, box.height);\n"
    "  pointed = at(e.clientX - box.left, box.width);\n"
    "  show();\n"
    "};\n"
    "get('view').onpointerleave = () => { pointed = null; show(); };\n"
    "matchMedia('(prefers-color-scheme: dark)').onchange = () => {\n"
    "  headButtons.forEach((b, h) => draw(b.firstChild, maps[h]));\n"
    "  select(head);\n"
    "};\n"
    "select(0);\n"
    "</script>\n";

int64_t report_attention_bytes(int64_t layers, int64_t heads, int64_t tokens)
{
    return layers * heads * ((2 * tokens * tokens + 2) / 3 * 4 + 3);
}

/* Writes a JSON string. "<" is escaped, so that the text cannot end the element. */
static void write_string(const char *text, FILE *file)
{
    json_t *string = json_string(text);
    char *escaped = json_dumps(string, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    for (const char *c = escaped != NULL ? escaped : "\"\""; *c != '\0'; c++) {
        fputs(*c == '<' ? "\\u003c" : (char[]){*c, '\0'}, file);
    }
    free(escaped);
    json_decref(string);
}

/* Returns byte `index` of the weights as little-endian integers of 16 bits. */
static unsigned get_byte(const float *weights, int64_t index)
{
    long value = lrintf(65535 * weights[index / 2]);
    return (unsigned)(index % 2 == 0 ? value & 255 : value >> 8);
}

/* Writes the weights of a head in base64. */
static void write_weights(const float *weights, int64_t count, FILE *file)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    int64_t bytes = 2 * count;
    for (int64_t i = 0; i < bytes; i += 3) {
        unsigned group = 0;
        for (int64_t b = i; b < i + 3; b++) {
            group = group << 8 | (b < bytes ? get_byte(weights, b) : 0);
        }
        for (int d = 0; d < 4; d++) {
            bool is_padding = i + d > bytes;
            fputc(is_padding ? '=' : digits[group >> (18 - 6 * d) & 63], file);
        }
    }
}

void report_write_attention(const struct report_attention *a, FILE *file)
{
    report_begin_page(a->title, ": attention", style, file);
    fputs("Attention of ", file);
    chart_escape(a->title, file);
    fputs("</h1>\n", file);
    fputs(body, file);
    fprintf(file, "<script type=\"application/json\" id=\"data\">{\"heads\":%d,\"tokens\":[",
            (int)a->heads);
    for (int64_t i = 0; i < a->count; i++) {
        fputs(i > 0 ? "," : "", file);
        write_string(a->tokens[i], file);
    }
    fputs("],\"weights\":[", file);
    for (int64_t h = 0; h < a->layers * a->heads; h++) {
        fputs(h > 0 ? ",\n\"" : "\n\"", file);
        write_weights(a->weights + h * a->count * a->count, a->count * a->count, file);
        fputs("\"", file);
    }
    fputs("]}</script>\n", file);
    fputs(script, file);
    fputs("</body></html>\n", file);
}
