//! Writes pictures of a plan or a measurement to files: an SVG document, or a page that contains it. The pictures
//! themselves are drawn by `autoplace_measure::picture`.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use autoplace::plan::Plan;
use autoplace_measure::Measurement;
use autoplace_measure::picture::{self, page};

pub(crate) use autoplace_measure::picture::Series;

use crate::files::{self, in_file};

/// Checks the name of a picture's file. The name's ending selects the format.
pub(crate) fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_known = path.extension().is_some_and(|extension| extension == "svg" || extension == "html");
    is_known.then_some(path).ok_or_else(|| "a picture is a file that ends in .svg or .html".to_owned())
}

/// Reads speeds that are drawn next to a measurement, with [`Series::read`]. The curve gets the name of the file.
pub(crate) fn read(file: &Path) -> Result<Series, String> {
    let text = files::read(file)?;
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    Series::read(&name, &text).map_err(|error| in_file(file, error))
}

/// Draws a plan. On a page, the text `report` is below the picture.
pub(crate) fn write_plan(file: &Path, plan: &Plan, report: &str) -> Result<(), Box<dyn Error>> {
    let svg = picture::plan(plan)?;
    let title = format!("Where {} goes", plan.model.name);
    written(file, &title, svg, &page::text(report))
}

/// A page with tables, and below them the picture and the text of the plan. The first row of a table is its heading.
pub(crate) fn plan_page(title: &str, plan: &Plan, tables: &[Vec<Vec<String>>]) -> String {
    // If a plan cannot be drawn, the page shows its text.
    let picture = picture::plan(plan).unwrap_or_default();
    let tables: String = tables.iter().map(|rows| page::table(rows)).collect();
    page::html(title, &tables, &(picture + &page::text(&plan.to_string())))
}

/// Draws a measurement and other series. On a page, `table` is below the picture.
pub(crate) fn write_measured(
    file: &Path,
    measurement: &Measurement,
    others: &[Series],
    table: &[Vec<String>],
) -> Result<(), Box<dyn Error>> {
    let svg = picture::measurement(measurement, others)?;
    let title = format!("{}, measured", measurement.model.identity.name);
    written(file, &title, svg, &page::table(table))
}

fn written(file: &Path, title: &str, svg: String, below: &str) -> Result<(), Box<dyn Error>> {
    let is_page = file.extension().is_some_and(|extension| extension == "html");
    let text = if is_page { page::html(title, &svg, below) } else { svg };
    fs::write(file, text).map_err(|error| in_file(file, error).into())
}
