# Writes chat_page.h: the bytes of PAGE as the array chat_page.
file(READ ${PAGE} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REPEAT "....." 16 line)
string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "static const unsigned char chat_page[] = {\n${bytes}\n};\n")
