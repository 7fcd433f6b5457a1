"""Notes that a model reads in place of an image or a file in the result of a call."""

OMITTED_IMAGE = "[an image, which this model cannot see]"
OMITTED_FILE = "[a file, which cannot be read in the result of a tool]"
