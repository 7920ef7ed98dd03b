// string.h for WebAssembly without a C library: with -mbulk-memory the builtins are instructions.
#ifndef SHOAL_WEB_STRING_H
#define SHOAL_WEB_STRING_H

#include <stddef.h>

#define memcpy __builtin_memcpy
#define memmove __builtin_memmove
#define memset __builtin_memset

#endif
