"""Notes that replace images and files in tool results."""

OMITTED_IMAGE = "[an image, which this model cannot see]"
OMITTED_FILE = "[a file, which cannot be read in the result of a tool]"
