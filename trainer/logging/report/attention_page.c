/* The HTML page of attention weights. It contains a small picture of each head, a large one of the
 * selected head, and the tokens, shaded by the weights of the selected query. The page of an
 * encoder-decoder has buttons that select one of its three attentions. In cross-attention, queries
 * and keys are different tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/logging/report/report.h"
#include "trainer/logging/report/report_impl.h"

static const char style[] =
    "<style>\n"
    "h1{overflow-wrap:anywhere}.heads{display:grid;gap:6px;overflow-x:auto;padding:3px}.heads "
    "button{padding:2px;border:1px "
    "solid var(--line);border-radius:4px;background:var(--card);color:var(--soft);font-size:11px;"
    "cursor:pointer;min-width:58px}.heads button[aria-pressed=true]{outline:3px solid var(--c1)}"
    "canvas{display:block;width:100%;image-rendering:pixelated;background:var(--page)}"
    ".view{max-width:640px;outline:1px solid "
    "var(--line);touch-action:pan-y}.tokens{display:flex;flex-wrap:wrap;gap:3px;"
    "margin:10px 0}.tokens button{font:inherit;border:1px solid var(--line);border-radius:4px;"
    "padding:1px 5px;color:var(--text);white-space:pre;cursor:pointer;background:var(--card)}"
    ".tokens button[aria-pressed=true]{outline:3px solid var(--c1)}.label{margin:10px 0 -6px}"
    "#value{white-space:pre-wrap;overflow-wrap:anywhere}[hidden]{display:none!important}\n"
    "</style>\n";

static const char body[] =
    "<p class=\"soft\">Rows are queries, columns are keys. The shade is the square root of the "
    "weight. Select a head, then a token: the tokens are shaded by the attention of this token to "
    "them. The arrow keys move between tokens and heads.</p>\n"
    "<noscript><p>This page needs JavaScript.</p></noscript>\n"
    "<div class=\"tokens\" id=\"parts\" hidden></div>\n"
    "<h2>All heads</h2><div class=\"heads\" id=\"heads\"></div>\n"
    "<h2 id=\"name\"></h2><p class=\"label soft cross\">Target: select a token.</p>"
    "<div class=\"tokens\" id=\"queries\"></div>\n"
    "<p class=\"label soft cross\">Source: shaded by the attention of the selected token.</p>"
    "<div class=\"tokens cross\" id=\"keys\"></div>\n"
    "<p id=\"value\" aria-live=\"polite\">&nbsp;</p>\n"
    "<canvas class=\"view\" id=\"view\"></canvas>\n";

/* Keys of self-attention are its queries: part.keys is then absent. */
static const char script[] =
    "<script>\n"
    "const get = id => document.getElementById(id);\n"
    "const data = JSON.parse(get('data').textContent);\n"
    "let part, queries, keys, maps, head, query, pointed, headButtons, queryButtons, keyButtons;\n"
    "const read = text => {\n"
    "  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));\n"
    "  const view = new DataView(bytes.buffer);\n"
    "  return Float32Array.from({length: queries.length * keys.length},\n"
    "    (_, i) => view.getUint16(2 * i, true) / 65535);\n"
    "};\n"
    "const rgb = () => {\n"
    "  const c = getComputedStyle(document.documentElement).getPropertyValue('--c0').trim();\n"
    "  return [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16));\n"
    "};\n"
    "const draw = (canvas, map) => {\n"
    "  const [width, height] = [keys.length, queries.length];\n"
    "  canvas.width = width;\n"
    "  canvas.height = height;\n"
    "  canvas.style.aspectRatio = Math.min(2, Math.max(0.5, width / height));\n"
    "  const context = canvas.getContext('2d'), image = context.createImageData(width, height);\n"
    "  const color = rgb();\n"
    "  map.forEach((w, i) => {\n"
    "    image.data.set([...color, Math.round(255 * Math.sqrt(w))], 4 * i);\n"
    "  });\n"
    "  context.putImageData(image, 0, 0);\n"
    "};\n"
    "const place = h => [Math.floor(h / data.heads), h % data.heads];\n"
    "const label = h => (data.parts.length > 1 ? `${part.name}, layer ` : 'Layer ') +\n"
    "  place(h).join(', head ');\n"
    "const tokenText = token => token.replaceAll('\\n', '\\u23ce') || '\\u00a0';\n"
    "const quote = token => `\\u201c${tokenText(token)}\\u201d`;\n"
    "const show = () => {\n"
    "  const map = maps[head], weight = i => map[query * keys.length + i];\n"
    "  get('name').textContent = label(head);\n"
    "  headButtons.forEach((b, i) => b.setAttribute('aria-pressed', i === head));\n"
    "  queryButtons.forEach((b, i) => b.setAttribute('aria-pressed', i === query));\n"
    "  keyButtons.forEach((b, i) => {\n"
    "    b.title = `${weight(i).toFixed(4)}`;\n"
    "    b.style.background = `color-mix(in srgb, var(--c0) ${60 * Math.sqrt(weight(i))}%, "
    "var(--page))`;\n"
    "  });\n"
    "  const order = [...keys.keys()].sort((a, b) => weight(b) - weight(a));\n"
    "  const list = pointed === null ? order.slice(0, 3) : [pointed];\n"
    "  get('value').textContent = `${query}: ${quote(queries[query])} attends to ` +\n"
    "    list.map(i => `${i}: ${quote(keys[i])} (${weight(i).toFixed(4)})`).join(', ');\n"
    "};\n"
    "const select = h => { head = h; draw(get('view'), maps[head]); show(); };\n"
    "const selectQuery = i => { query = i; pointed = null; show(); };\n"
    "const move = (list, step, columns) => e => {\n"
    "  const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns}[e.key];\n"
    "  const buttons = list(), at = buttons.indexOf(document.activeElement) + (by || 0);\n"
    "  if (!by || at < 0 || at >= buttons.length) { return; }\n"
    "  buttons[at].focus();\n"
    "  step(at);\n"
    "  e.preventDefault();\n"
    "};\n"
    "const makeButton = (text, click) => {\n"
    "  const button = document.createElement('button');\n"
    "  button.append(text);\n"
    "  button.onclick = click;\n"
    "  return button;\n"
    "};\n"
    "const makeHead = (map, h) => {\n"
    "  const button = makeButton(place(h).join('.'), () => select(h));\n"
    "  const canvas = document.createElement('canvas');\n"
    "  draw(canvas, map);\n"
    "  button.prepend(canvas);\n"
    "  button.setAttribute('aria-label', label(h));\n"
    "  return button;\n"
    "};\n"
    "const makeKey = (button, i) => {\n"
    "  button.onpointerenter = () => { pointed = i; show(); };\n"
    "  button.onpointerleave = () => { pointed = null; show(); };\n"
    "  return button;\n"
    "};\n"
    "const selectPart = p => {\n"
    "  part = data.parts[p];\n"
    "  queries = part.queries;\n"
    "  keys = part.keys || queries;\n"
    "  maps = part.weights.map(read);\n"
    "  query = queries.length - 1;\n"
    "  pointed = null;\n"
    "  headButtons = maps.map(makeHead);\n"
    "  queryButtons = queries.map((token, i) => makeButton(tokenText(token), () => "
    "selectQuery(i)));\n"
    "  keyButtons = part.keys\n"
    "    ? keys.map((token, i) => makeButton(tokenText(token), () => { pointed = i; show(); }))\n"
    "    : queryButtons;\n"
    "  keyButtons.forEach(makeKey);\n"
    "  get('heads').replaceChildren(...headButtons);\n"
    "  get('queries').replaceChildren(...queryButtons);\n"
    "  get('keys').replaceChildren(...(part.keys ? keyButtons : []));\n"
    "  document.querySelectorAll('.cross').forEach(e => { e.hidden = !part.keys; });\n"
    "  partButtons.forEach((b, i) => b.setAttribute('aria-pressed', i === p));\n"
    "  select(0);\n"
    "};\n"
    "const partButtons = data.parts.map((p, i) => makeButton(p.name, () => selectPart(i)));\n"
    "get('parts').append(...partButtons);\n"
    "get('parts').hidden = data.parts.length < 2;\n"
    "get('heads').style.gridTemplateColumns = `repeat(${data.heads}, minmax(58px, 120px))`;\n"
    "get('heads').onkeydown = move(() => headButtons, select, data.heads);\n"
    "get('queries').onkeydown = move(() => queryButtons, selectQuery, 1);\n"
    "get('view').onpointermove = e => {\n"
    "  const box = get('view').getBoundingClientRect();\n"
    "  const at = (v, size, n) => Math.min(n - 1, Math.max(0, Math.floor(v / size * n)));\n"
    "  query = at(e.clientY - box.top, box.height, queries.length);\n"
    "  pointed = at(e.clientX - box.left, box.width, keys.length);\n"
    "  show();\n"
    "};\n"
    "get('view').onpointerleave = () => { pointed = null; show(); };\n"
    "matchMedia('(prefers-color-scheme: dark)').onchange = () => {\n"
    "  headButtons.forEach((b, h) => draw(b.firstChild, maps[h]));\n"
    "  select(head);\n"
    "};\n"
    "selectPart(0);\n"
    "</script>\n";

int64_t report_attention_bytes(int64_t layers, int64_t heads, int64_t queries, int64_t keys)
{
    return layers * heads * ((2 * queries * keys + 2) / 3 * 4 + 3);
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

static void write_tokens(const char *name, const char *const *tokens, int64_t count, FILE *file)
{
    fprintf(file, ",\"%s\":[", name);
    for (int64_t i = 0; i < count; i++) {
        fputs(i > 0 ? "," : "", file);
        write_string(tokens[i], file);
    }
    fputs("]", file);
}

static void write_part(const struct report_attention_part *p, int64_t heads, FILE *file)
{
    int64_t size = p->query_count * p->key_count;
    fputs("{\"name\":", file);
    write_string(p->name, file);
    write_tokens("queries", p->queries, p->query_count, file);
    if (p->keys != p->queries) {
        write_tokens("keys", p->keys, p->key_count, file);
    }
    fputs(",\"weights\":[", file);
    for (int64_t h = 0; h < p->layers * heads; h++) {
        fputs(h > 0 ? ",\n\"" : "\n\"", file);
        write_weights(p->weights + h * size, size, file);
        fputs("\"", file);
    }
    fputs("]}", file);
}

void report_write_attention(const struct report_attention *a, FILE *file)
{
    report_begin_page(a->title, ": attention", style, file);
    fputs("Attention of ", file);
    chart_escape(a->title, file);
    fputs("</h1>\n", file);
    fputs(body, file);
    fprintf(file, "<script type=\"application/json\" id=\"data\">{\"heads\":%d,\"parts\":[",
            (int)a->heads);
    for (int i = 0; i < a->part_count; i++) {
        fputs(i > 0 ? "," : "", file);
        write_part(&a->parts[i], a->heads, file);
    }
    fputs("]}</script>\n", file);
    fputs(script, file);
    fputs("</body></html>\n", file);
}
