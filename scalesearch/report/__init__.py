"""Results for people and scripts: terminal tables, JSON, figures. No computation of its own."""
