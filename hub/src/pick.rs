//! Picks a model by name. In: a name, a machine, a request and a preference. Out: the models of that name, their
//! placements on the machine, and the best model.

use std::path::PathBuf;

use autoplace_planner::gguf::{Header, TensorType};
use autoplace_planner::machine::Machine;
use autoplace_planner::plan::Request;

use crate::choice::{Choice, PlannedFile, Preference, choose, choose_measured};
use crate::error::Error;
use crate::hub::Hub;
use crate::name::Name;
use crate::projector::{ProjectorChoice, choose_projector};
use crate::repository::{Candidate, Repository};

/// The models behind a name, planned for a machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pick {
    /// The requested name.
    pub name: Name,
    /// A sentence for each skipped file: files that are not models, and files whose header cannot be read.
    pub left_out: Vec<String>,
    /// The models with readable headers, in the order of the choice's rows.
    pub candidates: Vec<Candidate>,
    /// The repository's projectors for images or sound. If the hub was not asked, only those in the cache;
    /// [`Hub::projectors`] asks the hub.
    pub projectors: Vec<Candidate>,
    /// The header of the chosen model.
    pub header: Option<Header>,
    /// The placement of each model, and the one that meets the preference best.
    pub choice: Choice,
    /// The first file of the chosen model, if the cache has all its files.
    pub cached: Option<PathBuf>,
}

impl Pick {
    /// The chosen model.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] if no model meets the preference; [`choice`](Self::choice) has the outcome of each.
    pub fn chosen(&self) -> Result<&Candidate, Error> {
        let unmet = || Error::Unmet { name: self.name.to_string(), reason: self.choice.reason.clone() };
        self.choice.chosen.and_then(|chosen| self.candidates.get(chosen)).ok_or_else(unmet)
    }
}

/// A projector that goes beside a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProjectorPick {
    /// The chosen projector.
    pub candidate: Candidate,
    /// Its file, if the cache has it.
    pub cached: Option<PathBuf>,
    /// A sentence that says why it was chosen.
    pub reason: String,
}

impl Hub {
    /// Chooses among projectors with [`choose_projector`]: the best that goes with the model and fits beside it. Their
    /// headers are read by ranges; nothing is fetched.
    ///
    /// # Errors
    ///
    /// [`Error::NoProjector`] with the reason if no projector can be loaded beside the model. If no header can be read,
    /// the error of the first header.
    pub fn pick_projector(
        &self,
        projectors: &[Candidate],
        model: &Header,
        machine: &Machine,
        request: &Request,
    ) -> Result<ProjectorPick, Error> {
        let (mut files, mut of, mut first) = (Vec::new(), Vec::new(), None);
        for (candidate, header) in projectors.iter().zip(self.headers_of(projectors)) {
            match header {
                Ok(header) => {
                    files.push(PlannedFile::new(candidate.name(), candidate.quant().map(str::to_owned), header));
                    of.push(candidate);
                }
                Err(error) => _ = first.get_or_insert(error),
            }
        }
        if let (true, Some(error)) = (files.is_empty(), first) {
            return Err(error);
        }
        let ProjectorChoice { chosen, reason } = choose_projector(&files, model, machine, request);
        let Some(candidate) = chosen.map(|chosen| of[chosen].clone()) else {
            return Err(Error::NoProjector { reason });
        };
        Ok(ProjectorPick { cached: self.cached(&candidate), candidate, reason })
    }

    /// Chooses among the models of a name with [`choose`]. Fully cached models come first: if one of them meets the
    /// preference, nothing is requested. Otherwise the repository is listed and the headers are read by ranges, a few
    /// MB. No model is fetched.
    ///
    /// # Errors
    ///
    /// The errors of [`repository`](Self::repository). If no header can be read, the error of the first header. A
    /// preference that no model meets is an error of [`Pick::chosen`].
    pub fn pick(
        &self,
        name: &Name,
        machine: &Machine,
        request: &Request,
        preference: Preference,
    ) -> Result<Pick, Error> {
        self.pick_by(name, |files| choose(files, machine, request, preference))
    }

    /// Like [`pick`](Self::pick), with [`choose_measured`]: `measure` is called for missing rates of the host, if a
    /// part of a model would stay on the host.
    ///
    /// # Errors
    ///
    /// The errors of [`pick`](Self::pick).
    pub fn pick_measured(
        &self,
        name: &Name,
        machine: &Machine,
        request: &Request,
        preference: Preference,
        measure: impl Fn(Machine, &[(TensorType, bool)]) -> Machine,
    ) -> Result<Pick, Error> {
        self.pick_by(name, |files| choose_measured(files, machine, request, preference, &measure))
    }

    fn pick_by(&self, name: &Name, choose: impl Fn(&[PlannedFile]) -> Choice) -> Result<Pick, Error> {
        let among = |repository: Repository| self.among(name, repository, &choose);
        let here = self.clone().offline(true).repository(name).ok().map(|mut here| {
            here.candidates.retain(|candidate| self.cached(candidate).is_some());
            here.projectors.retain(|candidate| self.cached(candidate).is_some());
            among(here).ok()
        });
        match here.flatten().filter(|here| here.choice.chosen.is_some()) {
            Some(here) => Ok(here),
            None => among(self.repository(name)?),
        }
    }

    fn among(
        &self,
        name: &Name,
        repository: Repository,
        choose: impl FnOnce(&[PlannedFile]) -> Choice,
    ) -> Result<Pick, Error> {
        let headers = self.headers(&repository);
        let projectors = repository.projectors;
        let mut left_out: Vec<String> =
            repository.left_out.into_iter().map(|(files, why)| format!("{}: {why}", files.join(", "))).collect();
        let (mut candidates, mut files, mut first) = (Vec::new(), Vec::new(), None);
        for (candidate, header) in repository.candidates.into_iter().zip(headers) {
            match header {
                Ok(header) => {
                    files.push(PlannedFile::new(candidate.name(), candidate.quant().map(str::to_owned), header));
                    candidates.push(candidate);
                }
                Err(error) => {
                    left_out.push(format!("{} is left out: {error}", candidate.name()));
                    first.get_or_insert(error);
                }
            }
        }
        if let (true, Some(error)) = (files.is_empty(), first) {
            return Err(error);
        }
        let choice = choose(&files);
        let cached = choice.chosen.and_then(|chosen| self.cached(&candidates[chosen]));
        let header = choice.chosen.map(|chosen| files.swap_remove(chosen).header);
        Ok(Pick { name: name.clone(), left_out, candidates, projectors, header, choice, cached })
    }
}
