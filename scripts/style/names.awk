# Rule `names`: an external function begins with the name of its module or of a folder of its path;
# a static function has at least two words; no function uses a retired word.
#
# A module is the stem of a file, or of a file of the same folder with a shorter name: the functions
# of wordpiece_json.c may begin with wordpiece_json_ or, because wordpiece.c exists, with
# wordpiece_. A function that a header declares may begin with the module of the header. Tests
# define what they like, except for static functions of one word.
BEGIN {
    # Additional prefixes of a path: the prefix of the public library, and the operations of
    # kernels.h.
    extra["trainer/library/"] = "bm"
    extra["kernels/kernels."] = "op activation adamw attention classifier dropout embedding lamb " \
        "geglu linear residual rotary swiglu"
    # Functions of one word that every reader knows.
    split("main usage erf exp gelu log max min relu sigmoid silu softmax sqrt swap tanh", word, " ")
    for (i in word) {
        known[word[i]] = 1
    }
    # Words and names that the project has replaced by the words of the field.
    retired = "(^|_)(told|tells?|telling|survey|lend|lent|wish|suspects?|crew|cutter|asking" \
        "|slopes?|again|tally|spread|meet|deal|settle|there_and_back|look_ahead|leave_alone" \
        "|add_up|own_rows|some_rows|feed_start|feed_take)(_|$)"
    for (i = 1; i < ARGC; i++) {
        file = ARGV[i]
        sub(/\.[a-z]+$/, "", file)
        sub(/_impl$/, "", file)
        is_module[file] = 1
    }
}

# begins NAME PREFIX: whether the name is the prefix or begins with it and an underscore.
function begins(name, prefix)
{
    return name == prefix || index(name, prefix "_") == 1
}

# fits NAME FILE: whether an external function of this file may have this name.
function fits(name, file, part, count, i, folder, stem, path)
{
    for (path in extra) {
        if (index(file, path) == 1) {
            count = split(extra[path], part, " ")
            for (i = 1; i <= count; i++) {
                if (begins(name, part[i])) {
                    return 1
                }
            }
        }
    }
    sub(/\.[a-z]+$/, "", file)
    sub(/_impl$/, "", file)
    count = split(file, part, "/")
    for (i = 1; i <= count; i++) {
        if (begins(name, part[i])) {
            return 1
        }
    }
    stem = part[count]
    folder = substr(file, 1, length(file) - length(stem))
    while (match(stem, /_[^_]*$/)) {
        stem = substr(stem, 1, RSTART - 1)
        if ((folder stem) in is_module && begins(name, stem)) {
            return 1
        }
    }
    return 0
}

{
    read_c_line($0)
    if (!read_declaration()) {
        next
    }
    if (name in known || FILENAME ~ /^tests\/s(him|imt)\//) {
        next
    }
    if (name ~ retired) {
        report("names", declared_at, name "() contains a word that the project no longer uses")
    } else if (is_static && name !~ /[^_]_+[^_]/) {
        report("names", declared_at, "static " name "(): at least two words, a verb and a noun")
    } else if (!is_static && FILENAME !~ /^tests\//) {
        if (fits(name, FILENAME)) {
            fitting[name] = 1
        }
        if (!(name in place) || FILENAME ~ /h$/) {
            place[name] = FILENAME ":" declared_at
        }
    }
}

END {
    for (name in place) {
        if (!(name in fitting)) {
            print "names\t" place[name] ": " name "() begins with no name of its file or folders"
        }
    }
}
