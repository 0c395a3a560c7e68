/* Names from other frameworks: features that Bireme does not have, and flags that have another name
 * here. docs/limits.md describes the features. Case is ignored, and '-' equals '_'. */
#pragma once

/* Message about a missing feature; arguments: its name and the text of foreign_find_missing. */
#define FOREIGN_MISSING "'%.60s' %s, which Bireme does not have; docs/limits.md names alternatives"

/* foreign_find_missing - return what the feature with this name needs or is, such as "needs an
 * encoder-decoder model"; NULL if the name is not in the list. */
const char *foreign_find_missing(const char *name);

/* foreign_find_option - return the names of the options that replace a foreign flag, joined by '|';
 * NULL if there is none. */
const char *foreign_find_option(const char *flag);

/* foreign_find_setting - return the recipe setting that replaces a foreign flag, such as
 * "train.epochs"; NULL if there is none. */
const char *foreign_find_setting(const char *flag);

/* foreign_get_value - return what to write as the value of foreign_find_setting: "VALUE", or how to
 * compute it from the value of the flag. */
const char *foreign_get_value(const char *flag);

/* foreign_find_hint - return what to do instead of a key or flag that no single setting replaces,
 * such as "compile"; NULL if the name is not in the list. */
const char *foreign_find_hint(const char *name);
