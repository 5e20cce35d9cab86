//! The model that is examined, in the ways that sections run it: as it is, with every op checked, and by the reference. It knows no steps.

use vllm_apple_device::{Device, DeviceOptions, with_backend};
use vllm_apple_executor::{Batch, Executor, ExecutorError, ExecutorInfo};
use vllm_apple_model::{LoadOptions, LoadedModel, ModelExecutor};
use vllm_apple_ops::{Activations, Backend, DType};

use crate::checked::{Checked, OpRecord};
use crate::reference::Reference;
use crate::subject::{Subject, VerifyError, Wish};

/// A model whose steps leave logits.
pub(crate) trait Model {
    fn info(&self) -> &ExecutorInfo;

    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError>;

    /// Of the last step, `[logit_rows, vocab_size]`.
    fn logits(&self) -> &[f32];
}

impl<B: Backend> Model for ModelExecutor<B> {
    fn info(&self) -> &ExecutorInfo {
        Executor::info(self)
    }

    fn forward(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        Executor::forward(self, batch)
    }

    fn logits(&self) -> &[f32] {
        self.logits()
    }
}

/// A model of which every op is checked.
pub(crate) trait CheckedModel: Model {
    /// Whether ops are held against their references from now on; their bits are noted in any case.
    fn set_judging(&mut self, judging: bool);

    fn take_log(&mut self) -> Vec<OpRecord>;
}

impl<B: Backend> CheckedModel for ModelExecutor<Checked<B>> {
    fn set_judging(&mut self, judging: bool) {
        self.backend_mut().set_judging(judging);
    }

    fn take_log(&mut self) -> Vec<OpRecord> {
        self.backend_mut().take_log()
    }
}

/// `backend` with the model, and as many blocks as are wished for or as `options` let it have. It is warmed up as it is where it serves: its own
/// test is in that, and what it leaves to the host is noted.
pub(crate) fn load<B: Backend>(
    backend: B,
    subject: &Subject,
    wish: Wish,
    options: &LoadOptions,
) -> Result<ModelExecutor<B>, VerifyError> {
    let loaded = LoadedModel::load(backend, &subject.checkpoint, options)?;
    let num_blocks = wish.num_blocks.map_or_else(|| loaded.num_blocks(), Ok)?;
    let mut model = loaded.allocate(num_blocks)?;
    model.warm_up(&mut |_| {})?;
    subject.host_ops.note(&model.backend().choices());
    Ok(model)
}

impl Subject {
    /// What `start` makes of the device. No other is taken if it refuses.
    pub(crate) fn on_device<T>(
        &self,
        wish: Wish,
        change: impl FnOnce(&mut LoadOptions),
        start: impl FnOnce(Device, &LoadOptions) -> Result<T, VerifyError>,
    ) -> Result<T, VerifyError> {
        let mut options = self.options.clone();
        change(&mut options);
        // A step has room for a token of each request that is to run.
        let requests = options.max_num_seqs;
        options.max_num_batched_tokens = options.max_num_batched_tokens.map(|tokens| tokens.max(requests));
        let device_options = DeviceOptions { threads: wish.threads.or(self.device.threads), ..self.device.clone() };
        start(Device::open(&device_options, &self.checkpoint.kinds(&options)?)?, &options)
    }

    /// The model on the device.
    pub(crate) fn model(&self, change: impl FnOnce(&mut LoadOptions)) -> Result<Box<dyn Model>, VerifyError> {
        self.on_device(Wish::default(), change, |device, options| {
            with_backend!(device, backend => Ok(Box::new(load(backend, self, Wish::default(), options)?) as Box<dyn Model>))
        })
    }

    /// The model on the device, with every op checked.
    pub(crate) fn checked(&self, change: impl FnOnce(&mut LoadOptions)) -> Result<Box<dyn CheckedModel>, VerifyError> {
        self.on_device(Wish::default(), change, |device, options| {
            with_backend!(device, backend => {
                let backend = Checked::new(backend, self.copied());
                Ok(Box::new(load(backend, self, Wish::default(), options)?) as Box<dyn CheckedModel>)
            })
        })
    }

    /// The model by the ops' formulas, with the device's types.
    pub(crate) fn reference(
        &self,
        change: impl FnOnce(&mut LoadOptions),
    ) -> Result<ModelExecutor<Reference>, VerifyError> {
        let mut options = self.options.clone();
        change(&mut options);
        load(Reference::new(self.copied()), self, Wish::default(), &options)
    }

    /// The model by the ops' formulas in float32, with activations as they are.
    pub(crate) fn exact_reference(
        &self,
        change: impl FnOnce(&mut LoadOptions),
    ) -> Result<ModelExecutor<Reference>, VerifyError> {
        self.reference(|options| {
            change(options);
            (options.dtype, options.kv_cache_dtype) = (Some(DType::F32), Some(DType::F32));
            options.activation_dtype = Activations::Exact;
        })
    }

    /// The type of the model's floats if they lie in no file: random ones.
    fn copied(&self) -> Option<DType> {
        self.checkpoint.weights_paths().next().is_none().then(|| self.checkpoint.dtype())
    }
}
