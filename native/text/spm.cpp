#include "text/spm.h"
