/* Activations, and fusion plans: a convolution, its bias and an activation as one kernel. Alpha and
   beta point to a float in host memory. */

typedef enum {
    miopenActivationPASTHRU = 0,
    miopenActivationLOGISTIC = 1,
    miopenActivationTANH = 2,
    miopenActivationRELU = 3,
    miopenActivationSOFTRELU = 4,
    miopenActivationABS = 5,
    miopenActivationPOWER = 6,
    miopenActivationCLIPPEDRELU = 7,
    miopenActivationLEAKYRELU = 8,
    miopenActivationELU = 9
} miopenActivationMode_t;

typedef struct miopenActivationDescriptor *miopenActivationDescriptor_t;

miopenStatus_t miopenCreateActivationDescriptor(miopenActivationDescriptor_t *activation_desc);
miopenStatus_t miopenDestroyActivationDescriptor(miopenActivationDescriptor_t activation_desc);
miopenStatus_t miopenSetActivationDescriptor(
    const miopenActivationDescriptor_t activation_desc,
    miopenActivationMode_t mode,
    double activation_alpha,
    double activation_beta,
    double activation_gamma);
miopenStatus_t miopenGetActivationDescriptor(
    const miopenActivationDescriptor_t activation_desc,
    miopenActivationMode_t *mode,
    double *activation_alpha,
    double *activation_beta,
    double *activation_gamma);
miopenStatus_t miopenActivationForward(
    miopenHandle_t handle,
    const miopenActivationDescriptor_t activation_desc,
    const void *alpha,
    const miopenTensorDescriptor_t x_desc,
    const dev_ptr x,
    const void *beta,
    const miopenTensorDescriptor_t y_desc,
    dev_ptr y);

typedef enum {
    miopenVerticalFusion = 0,
    miopenHorizontalFusion = 1
} miopenFusionDirection_t;

typedef struct miopenFusionPlanDescriptor *miopenFusionPlanDescriptor_t;
/* Belongs to its plan. */
typedef struct miopenFusionOpDescriptor *miopenFusionOpDescriptor_t;
typedef struct miopenOperatorArgs *miopenOperatorArgs_t;

miopenStatus_t miopenCreateFusionPlan(
    miopenFusionPlanDescriptor_t *plan,
    const miopenFusionDirection_t direction,
    const miopenTensorDescriptor_t input_desc);
miopenStatus_t miopenDestroyFusionPlan(miopenFusionPlanDescriptor_t plan);
miopenStatus_t miopenCompileFusionPlan(miopenHandle_t handle, miopenFusionPlanDescriptor_t plan);
miopenStatus_t miopenCreateOpConvForward(
    miopenFusionPlanDescriptor_t plan,
    miopenFusionOpDescriptor_t *conv_op,
    miopenConvolutionDescriptor_t conv_desc,
    const miopenTensorDescriptor_t w_desc);
miopenStatus_t miopenCreateOpActivationForward(
    miopenFusionPlanDescriptor_t plan,
    miopenFusionOpDescriptor_t *activation_op,
    miopenActivationMode_t mode);
miopenStatus_t miopenCreateOpBiasForward(
    miopenFusionPlanDescriptor_t plan,
    miopenFusionOpDescriptor_t *bias_op,
    const miopenTensorDescriptor_t b_desc);
miopenStatus_t miopenCreateOperatorArgs(miopenOperatorArgs_t *args);
miopenStatus_t miopenDestroyOperatorArgs(miopenOperatorArgs_t args);
miopenStatus_t miopenSetOpArgsConvForward(
    miopenOperatorArgs_t args,
    const miopenFusionOpDescriptor_t conv_op,
    const void *alpha,
    const void *beta,
    const dev_ptr w);
miopenStatus_t miopenSetOpArgsActivForward(
    miopenOperatorArgs_t args,
    const miopenFusionOpDescriptor_t activation_op,
    const void *alpha,
    const void *beta,
    double activation_alpha,
    double activation_beta,
    double activation_gamma);
miopenStatus_t miopenSetOpArgsBiasForward(
    miopenOperatorArgs_t args,
    const miopenFusionOpDescriptor_t bias_op,
    const void *alpha,
    const void *beta,
    const dev_ptr bias);
miopenStatus_t miopenExecuteFusionPlan(
    const miopenHandle_t handle,
    const miopenFusionPlanDescriptor_t plan,
    const miopenTensorDescriptor_t input_desc,
    const dev_ptr input,
    const miopenTensorDescriptor_t output_desc,
    dev_ptr output,
    miopenOperatorArgs_t args);
