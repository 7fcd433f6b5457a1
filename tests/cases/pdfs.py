"""Small PDF files, written by hand: pages of text, of drawings alone, of odd sizes."""


def write_pdf(texts, box="0 0 612 792", more=b"", trailer=b""):
    """Returns a file with a page for each text; one without text has a drawing alone."""
    n = len(texts)
    kids = " ".join(f"{3 + 2 * i} 0 R" for i in range(n))
    font = 3 + 2 * n
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {n} >>".encode()]
    for i, text in enumerate(texts):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [{box}] /Contents {4 + 2 * i} 0 R"
            f" /Resources << /Font << /F1 {font} 0 R >> >> >>".encode()
        )
        shown = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
        body = f"BT /F1 24 Tf 72 700 Td ({shown}) Tj ET" if text else f"1 0 0 rg {50 + i} 50 200 100 re f"
        objects.append(f"<< /Length {len(body)} >>\nstream\n{body}\nendstream".encode("latin-1"))
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>" + more)
    out = bytearray(b"%PDF-1.4\n")
    places = []
    for number, one in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n".encode() + one + b"\nendobj\n"
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(f"{place:010} 00000 n \n".encode() for place in places)
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R ".encode() + trailer + b">>\n"
    return bytes(out + f"startxref\n{start}\n%%EOF\n".encode())
