#!/bin/bash
# The pairs of scripts/translation_corpus.sh from a catalogue: aligned, cleaned, each source once.
set -eu
command -v msgfmt >/dev/null || {
    echo "skipped: no msgfmt (package gettext)"
    exit 77
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
catalogues=unpacked/usr/share/locale/es/LC_MESSAGES
mkdir -p $catalogues
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
msgfmt -o $catalogues/a.mo es.po
"${BIREME_SOURCE_DIR:?}/scripts/translation_corpus.sh" out es "$folder/unpacked" 2>log || {
    cat log
    exit 1
}
paste -d'|' <(cat out/*.en) <(cat out/*.es) | LC_ALL=C sort >pairs
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
