# Rule `numbers`: the functions of base/number.h instead of (a + b - 1) / b and a < b ? a : b.
#
# They are functions of int64_t. Therefore a declaration of a size_t or of an address may divide.
# Minimum and maximum are checked only in declarations of int64_t, because the type of other
# expressions is unknown.
BEGIN {
    operand = "[A-Za-z_][A-Za-z0-9_.]*(->[A-Za-z0-9_.]+)*"
    division = "[+] " operand " - 1[)] / " operand
}

function check_divisions(text, part, divisor)
{
    while (match(text, division)) {
        part = substr(text, RSTART + 2, RLENGTH - 2)
        text = substr(text, RSTART + RLENGTH)
        divisor = part
        sub(/^.* \/ /, "", divisor)
        if (part == divisor " - 1) / " divisor) {
            report("numbers", FNR, "use number_divide_up or number_round_up (base/number.h)")
        }
    }
}

# ends_with TEXT OPERAND: whether the text is the operand, up to the end of the expression.
function ends_with(text, operand)
{
    return index(text, operand) == 1 && substr(text, length(operand) + 1) ~ /^ *([;,]|$)/
}

# check_choices TEXT: a line that declares an int64_t.
function check_choices(text, first, second, chosen, other)
{
    while (match(text, / [<>]=? /)) {
        first = substr(text, 1, RSTART - 1)
        text = second = chosen = substr(text, RSTART + RLENGTH)
        sub(/^.* [=?:] /, "", first)
        if (!sub(/ \? .*$/, "", second) || !sub(/ : .*$/, "", chosen)) {
            return
        }
        other = substr(text, length(chosen) + 4)
        chosen = substr(chosen, length(second) + 4)
        if ((chosen == first && ends_with(other, second)) ||
            (chosen == second && ends_with(other, first))) {
            report("numbers", FNR, "use number_min or number_max (base/number.h)")
        }
    }
}

{
    read_c_line($0)
    if (code !~ /(^|[^A-Za-z_])(size_t|uintptr_t) [a-z]/) {
        check_divisions(code)
    }
    if (code ~ /(^|[^A-Za-z_])int64_t [a-z]/) {
        check_choices(code)
    }
}
