#!/bin/bash
# The pairs of scripts/translation_corpus.sh from a catalog and from man pages: aligned, cleaned,
# each source once. The three parts share no source.
set -eu
command -v msgfmt >/dev/null || {
    echo "skipped: no msgfmt (package gettext)"
    exit 77
}
source "${BIREME_SOURCE_DIR:=$PWD}/tests/temporary_folder.sh"
catalogs=unpacked/usr/share/locale/es/LC_MESSAGES
mkdir -p $catalogs
{
    printf 'msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n\n'
    printf 'msgid "_Open file"\nmsgstr "_Abrir archivo"\n\n'
    printf 'msgid "Com_pact"\nmsgstr "Com_pacto"\n\nmsgid "Sho_w all"\nmsgstr "Mostrar todo"\n\n'
    printf 'msgid "Unknown key_id"\nmsgstr "key_id desconocido"\n\n'
    printf 'msgid "Set LC_ALL"\nmsgstr "Defina la variable LC_ALL"\n\n'
    printf 'msgid "the file_name"\nmsgstr "el nombre_archivo"\n\n'
    printf 'msgid "same"\nmsgstr "same"\n\nmsgid "%%s"\nmsgstr "%%s"\n\n'
    printf 'msgid "Too\\n"\n"long %%s line"\nmsgstr "L\xednea %%s\\n"\n"demasiado larga"\n\n'
    printf 'msgid "one file"\nmsgid_plural "%%d files"\nmsgstr[0] "un archivo"\n'
    printf 'msgstr[1] "%%d archivos"\n\n'
    printf 'msgctxt "menu"\nmsgid "Open file"\nmsgstr "Otro texto"\n\n'
    printf 'msgid "Close"\nmsgstr ""\n'
} >es.po
msgfmt -o $catalogs/a.mo es.po

# make_corpus FOLDER: write the pairs of a folder with packages to out, and sorted to pairs.
make_corpus() {
    rm -rf out
    "${BIREME_SOURCE_DIR:?}/scripts/translation_corpus.sh" out es "$folder/$1" 2>log ||
        fail "translation_corpus.sh ended with $?"
    paste -d'|' <(cat out/*.en) <(cat out/*.es) | LC_ALL=C sort >pairs
}
make_corpus unpacked
LC_ALL=C sort >expected <<END
Too long %s line|Línea %s demasiado larga
one file|un archivo
Compact|Compacto
Show all|Mostrar todo
Unknown key_id|key_id desconocido
Set LC_ALL|Defina la variable LC_ALL
the file_name|el nombre_archivo
END
grep -v '^Open file' pairs | diff expected - || exit 1
[ "$(grep -c '^Open file|' pairs)" = 1 ]

# write_page FILE PARAGRAPH...: write a man page.
write_page() {
    mkdir -p "$(dirname "$1")"
    {
        printf '.TH PAGE 1\n.\\" a comment\n.SH TITLE\n%s\n' "$2"
        printf '.PP\n%s\n' "${@:3}"
    } | gzip >"$1"
}

# Man pages: paragraphs without markup. A page with another number of paragraphs has no pairs.
man=manuals/usr/share/man
write_page $man/man1/a.1.gz 'first \- print the \fIfirst\fR line' \
    $'.B Print\nthe \\(lqlast\\(rq line.' 'the same'
write_page $man/es/man1/a.1.gz 'first \- imprime la \fBprimera\fP' \
    $'Imprime\n.I la última\nlínea.' 'the same'
write_page $man/man1/b.1.gz 'only in English' 'two paragraphs'
write_page $man/es/man1/b.1.gz 'un párrafo'
write_page $man/es/man1/c.1.gz 'sin página en inglés'
make_corpus manuals
diff pairs - <<'END'
Print the "last" line.|Imprime la última línea.
first - print the first line|first - imprime la primera
END

# The parts share no source, also not one with other punctuation, capitals or numbers.
parts=split/usr/share/locale/es/LC_MESSAGES
mkdir -p $parts
words=(alpha bravo charlie delta echo foxtrot golf hotel india juliet)
{
    printf 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    for ((i = 0; i < 600; i++)); do
        text="${words[i % 10]} ${words[i / 10 % 10]} ${words[i / 100]}"
        for variant in "$text" "${text^}." "$text ($i)"; do
            printf 'msgid "%s"\nmsgstr "texto: %s"\n\n' "$variant" "$variant"
        done
    done
} >parts.po
msgfmt -o $parts/a.mo parts.po
make_corpus split
[ "$(wc -l <pairs)" = 1800 ] || fail "$(wc -l <pairs) pairs"
for part in train validation test; do
    [ -s out/$part.en ] || fail "the part $part is empty"
    sed -E 's/[^A-Za-z]//g; s/.*/\L&/' out/$part.en | sort -u >$part.keys
    paste -d'|' out/$part.en out/$part.es |
        awk -F'|' '$2 != "texto: " $1 { exit 1 }' || fail "the part $part is not aligned"
done
[ "$(cat ./*.keys | wc -l)" = 600 ] && [ "$(sort ./*.keys | uniq -d | wc -l)" = 0 ] ||
    fail "sources in two parts: $(sort ./*.keys | uniq -d | head -n 3)"
awk 'END { exit !(NR > 1600) }' out/train.en || fail 'the validation and test parts are too large'
