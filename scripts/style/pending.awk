# Reads violations (`rule TAB file:line: reason`) and scripts/style_pending.txt, which lists paths
# that do not follow a rule yet. Prints, by the variable `print_what`:
#   violations   of the paths that are not listed, as `file:line: rule: reason`
#   counts       the number of violations per rule and top folder, those of listed paths included
#   unneeded     the lines of the list without a violation
BEGIN {
    FS = "\t"
    list = "scripts/style_pending.txt"
    while ((getline line < list) > 0) {
        if (line !~ /^(#|$)/ && split(line, part, " ") == 2) {
            rule[++listed] = part[1]
            prefix[listed] = part[2]
        }
    }
}

{
    pending = 0
    for (i = 1; i <= listed; i++) {
        if (rule[i] == $1 && covers(prefix[i], $2)) {
            pending = used[i] = 1
        }
    }
    split($2, part, ":")
    if (print_what == "violations") {
        if (!pending) {
            print part[1] ":" part[2] ": " $1 substr($2, length(part[1]) + length(part[2]) + 2)
        }
        next
    }
    top = part[1]
    if (!sub(/\/.*/, "", top)) {
        top = "."
    }
    add($1 SUBSEP top, part[1])
    add($1 SUBSEP "total", part[1])
}

# covers PREFIX PATH: whether the path begins with the prefix. A folder (a prefix that ends with
# "/") does not cover its subfolders.
function covers(prefix, path)
{
    if (index(path, prefix) != 1) {
        return 0
    }
    sub(/:.*/, "", path)
    return prefix !~ /\/$/ || substr(path, length(prefix) + 1) !~ /\//
}

# add KEY FILE: count a violation in this file.
function add(key, file)
{
    count[key]++
    if (!((key, file) in seen)) {
        seen[key, file] = 1
        files[key]++
    }
}

END {
    for (key in count) {
        split(key, part, SUBSEP)
        if (print_what == "counts") {
            printf "%-11s %-9s %5d violations in %3d files\n", part[1], part[2], count[key],
                files[key]
        }
    }
    for (i = 1; i <= listed; i++) {
        if (print_what == "unneeded" && !(i in used)) {
            print rule[i] " " prefix[i]
        }
    }
}
