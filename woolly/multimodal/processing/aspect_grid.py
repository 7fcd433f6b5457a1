"""Grid of tiles with the closest aspect ratio to an image."""

from __future__ import annotations


def find_closest_aspect_ratio(height: int, width: int, size: int, least: int, most: int) -> tuple[int, int]:
    """Return columns and rows of the grid with the closest aspect ratio.

    Among equally close grids, choose the largest with less than twice the pixels of the image.
    """
    grids = [
        (columns, lines)
        for columns in range(1, most + 1)
        for lines in range(1, most // columns + 1)
        if least <= columns * lines
    ]
    best, nearest = (1, 1), float("inf")
    for columns, lines in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(width / height - columns / lines)
        if distance < nearest:
            best, nearest = (columns, lines), distance
        elif distance == nearest and height * width > 0.5 * size * size * columns * lines:
            best = (columns, lines)
    return best
