//! `GET /openapi.json`: the paths of the router and the fields that its endpoints ask a request for. Both are those that are used, so that the
//! description cannot differ from them. Knows no endpoint's fields.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::routing::MethodRouter;
use serde_json::{Map, Value, json};

use super::App;
use super::error::ApiError;
use super::fields::{Fields, Known};
use super::routes::routes;
use crate::served::Task;

/// Reads a request and says what was asked for.
pub type Reader = fn(Fields) -> Result<Vec<Known>, ApiError>;

/// What a method of a path is for.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// In small letters.
    pub method: &'static str,
    /// In a line.
    pub summary: &'static str,
    /// What it reads, if it has a body.
    pub body: Option<Body>,
}

/// The body of a request.
#[derive(Debug, Clone, Copy)]
pub struct Body {
    /// Bodies that have little, but between them all fields that are there in the place of others.
    pub least: &'static [&'static str],
    /// Fields that must be there.
    pub required: &'static [&'static str],
    /// What reads it.
    pub read: Reader,
}

/// A path of the server.
pub struct Route {
    /// As the router takes it.
    pub path: &'static str,
    /// What answers.
    pub methods: MethodRouter<Arc<App>>,
    /// What it answers to.
    pub operations: Vec<Operation>,
    /// What the model must do for it; `None`: whatever it does.
    pub task: Option<Task>,
}

/// `GET /openapi.json`
pub async fn describe(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let mut paths = Map::new();
    for route in routes(&app.config).into_iter().filter(|route| route.task.is_none_or(|task| app.does(task))) {
        let mut operations = Map::new();
        for operation in &route.operations {
            operations.insert(operation.method.to_owned(), operation.describe(&app)?);
        }
        // The router's sign for a name with slashes.
        paths.insert(route.path.replace('*', ""), Value::Object(operations));
    }
    Ok(Json(json!({
        "openapi": "3.1.0",
        "info": {"title": "vllm-apple", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
    })))
}

impl Operation {
    fn describe(&self, app: &App) -> Result<Value, ApiError> {
        let answers = json!({"200": {"description": "The answer."}, "default": {"description": "An error object."}});
        let mut described = json!({"summary": self.summary, "responses": answers});
        if let Some(body) = self.body {
            let schema = body.schema(app)?;
            described["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        Ok(described)
    }
}

impl Body {
    /// The object that it is.
    fn schema(self, app: &App) -> Result<Value, ApiError> {
        let mut properties = Map::new();
        for least in self.least {
            let mut fields = Fields::parse(least.as_bytes(), app.memory.hold())?;
            // Which model is asked is seen before the rest.
            let _model: Option<String> = fields.optional("model")?;
            for Known { name, kind } in (self.read)(fields)? {
                // What is read twice has the type that is known.
                if kind.is_some() || !properties.contains_key(name) {
                    let schema = kind.map_or_else(|| json!({}), |kind| json!({"type": kind}));
                    properties.insert(name.to_owned(), schema);
                }
            }
        }
        properties.insert("model".to_owned(), json!({"type": "string"}));
        Ok(json!({"type": "object", "properties": properties, "required": self.required}))
    }
}
