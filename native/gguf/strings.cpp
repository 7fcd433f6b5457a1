#include "gguf/strings.h"
