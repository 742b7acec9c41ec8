"""Drawings as SVG text: lines, bars, points, heat maps, and pictures of clients."""
